"""Files that a run can be resumed from: written atomically, in the background."""

"""Write files that a run resumes from, atomically and in the background."""

"""What everything is checked against: the interpreter, and when two graphs have one answer."""

"""The figures of LoopTune, drawn of what this machine measures: learners, searches, libraries."""

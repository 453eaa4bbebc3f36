"""Turn a schedule and its storage plan into regions and host code."""

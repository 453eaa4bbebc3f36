"""Loop schedules for tensor contractions: problems, nests, machine code, and their tuning."""

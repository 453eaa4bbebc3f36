"""Mappings run for real: RAM is the fast memory, a file of a disk the slow one."""

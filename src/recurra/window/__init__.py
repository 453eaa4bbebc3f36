"""Kernels scheduled out of order inside a small window of the program (ACS)."""

from recurra.window.core import State as State
from recurra.window.core import Window as Window
from recurra.window.task import MEMORY as MEMORY
from recurra.window.task import Segment as Segment
from recurra.window.task import Task as Task
from recurra.window.task import WindowError as WindowError
from recurra.window.task import barrier as barrier

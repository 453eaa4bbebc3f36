"""Where tests build native parts of the window: kept, and shared, since it takes half a minute."""

import tempfile
from pathlib import Path

FOLDER = Path(tempfile.gettempdir()) / "recurra-window-tests"

"""What `transduct doctor` finds out: about this computer, and about a folder with a model, a run, an adapter or an export.

- `examine_computer` tells versions, devices and kinds of attention; `examine_folder` tells what is wrong with a folder.
- Both return `Findings` in plain words, with what to do. Nothing is changed, and no code of the folder is run.
"""

from transduct.doctor.computer import examine_computer
from transduct.doctor.findings import Finding, Findings
from transduct.doctor.folder import examine_folder

__all__ = ["Finding", "Findings", "examine_computer", "examine_folder"]

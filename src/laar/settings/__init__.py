"""The settings file: one YAML document; every setting has a unit, a default and a reason.

Unknown keys are errors. Errors give the file, line and key, and all are reported together. The
reference documentation and the JSON schema for editors are generated from the field descriptions.
Each section declares whether changes apply at once or after a restart.
"""

from laar.settings.settings import Loaded, Settings, load

__all__ = ["Loaded", "Settings", "load"]

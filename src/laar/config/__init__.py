"""The settings file: one YAML document, every setting with unit, default and reason.

Unknown keys are errors, faults are named by file, line and key, and all of them are shown at once.
The field descriptions are the reference: the documentation and the editors' JSON schema are made
from them. Each section says of its settings whether a change counts at once or after a restart.
"""

from laar.config.changes import Change, change
from laar.config.context import Context, ContextRoute
from laar.config.listening import Tls
from laar.config.routing import Accuracy, Tuning
from laar.config.section import Applies, leaves, value_at
from laar.config.settings import Loaded, Settings, load, load_settings
from laar.config.showing import as_yaml

__all__ = [
    "Accuracy",
    "Applies",
    "Change",
    "Context",
    "ContextRoute",
    "Loaded",
    "Settings",
    "Tls",
    "Tuning",
    "as_yaml",
    "change",
    "leaves",
    "load",
    "load_settings",
    "value_at",
]

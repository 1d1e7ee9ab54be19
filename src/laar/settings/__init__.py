"""The settings file: one YAML document; every setting has a unit, a default and a reason.

Unknown keys are errors. Errors name file, line and key, and all are reported at once. The reference
documentation and the JSON schema for editors are generated from the field descriptions. Each
section declares whether changes apply at once or after a restart.
"""

from laar.declaring import Applies
from laar.settings.changes import Change, change
from laar.settings.context import ContextRoute
from laar.settings.ignored import remarks
from laar.settings.listening import Listen, Tls
from laar.settings.routing import Accuracy, Tuning
from laar.settings.section import leaves, value_at
from laar.settings.settings import Loaded, Settings, load
from laar.settings.showing import as_yaml

__all__ = [
    "Accuracy",
    "Applies",
    "Change",
    "ContextRoute",
    "Listen",
    "Loaded",
    "Settings",
    "Tls",
    "Tuning",
    "as_yaml",
    "change",
    "leaves",
    "load",
    "remarks",
    "value_at",
]

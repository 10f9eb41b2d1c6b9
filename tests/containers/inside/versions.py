"""Run in an image: print name and version of each distribution that its Python has, as JSON."""

import json
import re
from importlib import metadata

print(
    json.dumps(
        {
            re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower(): each.version
            for each in metadata.distributions()
        }
    )
)

"""Run beside Prometheus of compose.yaml: print which servers it reads, and whether they answer."""

import json
import urllib.request

with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/targets") as answer:
    targets = json.load(answer)["data"]["activeTargets"]
print(", ".join(sorted(f"{each['labels']['instance']} {each['health']}" for each in targets)))

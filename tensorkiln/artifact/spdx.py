"""Components as a document of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/), in JSON.

Equal libraries give equal documents: there is no time of day in one. `created`, which SPDX asks
for, is what the caller says (SOURCE_DATE_EPOCH), else the beginning of 1970; the namespace has
the hash of the content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from tensorkiln.artifact.components import Component
from tensorkiln.base.licenses import UNSTATED
from tensorkiln.base.origin import ModelSource
from tensorkiln.base.version import VERSION

_RELATIONS = {  # (from the library to the component?, its type)
    "embedded": (True, "CONTAINS"),
    "linked": (True, "DYNAMIC_LINK"),
    "opened": (False, "RUNTIME_DEPENDENCY_OF"),
    "host": (False, "PROVIDED_DEPENDENCY_OF"),
    "build": (False, "BUILD_DEPENDENCY_OF"),
}
_REFERENCE = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_TEXTS = {
    "LicenseRef-NVIDIA-driver": "The license of NVIDIA's driver, which is installed with it.",
}


def spdx_document(
    name: str,
    components: Sequence[Component],
    *,
    sha256: str = "",
    model: ModelSource | None = None,
    created: int = 0,
) -> dict[str, object]:
    """The document of a library called `name`, whose file has the hash `sha256` (empty: it is no
    single file); `model` is what it was made from, `created` seconds since 1970."""
    library = _package("SPDXRef-Library", name, "", UNSTATED, UNSTATED)
    if sha256:
        library["checksums"] = [{"algorithm": "SHA256", "checksumValue": sha256}]
    packages = [library]
    relations = [_relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Library")]
    for i, c in enumerate(components):
        package_id = f"SPDXRef-{i}-{re.sub('[^A-Za-z0-9.-]', '-', c.name)}"
        row = _package(package_id, c.name, c.version, c.license, c.url or UNSTATED)
        files = f" ({', '.join(c.files)})" if c.files else ""
        row["comment"] = f"{c.how}{files}: {c.why}"
        packages.append(row)
        outwards, kind = _RELATIONS[c.how]
        ends = ("SPDXRef-Library", package_id) if outwards else (package_id, "SPDXRef-Library")
        relations.append(_relation(ends[0], kind, ends[1]))
    if model is not None:
        row = _package("SPDXRef-Model", f"model ({model.kind})", "", UNSTATED, UNSTATED)
        row["checksums"] = [{"algorithm": "SHA256", "checksumValue": model.sha256}]
        if model.weights:
            listed = (f"weights {n}: SHA256 {digest}" for n, digest in model.weights)
            row["comment"] = "; ".join(listed)
        packages.append(row)
        relations.append(_relation("SPDXRef-Library", "GENERATED_FROM", "SPDXRef-Model"))
    references = sorted({r for c in components for r in _REFERENCE.findall(c.license)})
    document: dict[str, object] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": "",
        "creationInfo": {
            "created": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: tensorkiln-{VERSION}"],
        },
        "packages": packages,
        "relationships": relations,
    }
    if references:
        document["hasExtractedLicensingInfos"] = [
            {
                "licenseId": r,
                "name": r.removeprefix("LicenseRef-"),
                "extractedText": _TEXTS.get(r, "Whoever declares the dependency has the text."),
            }
            for r in references
        ]
    digest = hashlib.sha256(json.dumps(document).encode()).hexdigest()
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)
    document["documentNamespace"] = f"urn:tensorkiln:spdx:{plain}:{digest}"
    return document


def _package(
    package_id: str, name: str, version: str, license_: str, place: str
) -> dict[str, object]:
    row: dict[str, object] = {"SPDXID": package_id, "name": name}
    if version:
        row["versionInfo"] = version
    return {
        **row,
        "downloadLocation": _location(place),
        "filesAnalyzed": False,
        "licenseConcluded": license_,
        "licenseDeclared": license_,
        "copyrightText": UNSTATED,
    }


def _location(url: str) -> str:
    """A download location: a URL of a scheme that SPDX knows; else nobody knows."""
    return url if re.match(r"(https?|ftp|git|git\+\w+|ssh)://[^\s]+\Z", url) else UNSTATED


def _relation(source: str, kind: str, target: str) -> dict[str, str]:
    return {"spdxElementId": source, "relationshipType": kind, "relatedSpdxElement": target}

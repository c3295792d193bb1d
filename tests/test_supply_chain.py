"""The bill of materials names what the lock file names, and each installed distribution states a licence."""

from __future__ import annotations

import re

from tests.supply_chain import LOCK, licences, locked, sbom


def test_the_bill_of_materials_names_every_locked_distribution_with_its_hashes() -> None:
    bill = sbom()
    names = re.findall(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE)
    assert [one["name"] for one in bill["components"]] == names
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert all(one["properties"] and one["purl"].startswith("pkg:pypi/") for one in bill["components"])
    assert len({one["bom-ref"] for one in bill["components"]}) == len(names)
    assert sum(len(one.hashes) for one in locked(LOCK.read_text())) == LOCK.read_text().count("--hash=sha256:")


def test_every_locked_distribution_that_is_installed_states_its_licence() -> None:
    found = {name.lower().replace("_", "-"): licence for name, (_, licence) in licences().items()}
    names = [one.name for one in locked(LOCK.read_text()) if one.name in found]
    assert len(names) > 50
    assert [name for name in names if found[name] == "not stated"] == []
    assert [name for name in names if re.search(r"\bA?GPL|Affero", found[name])] == []

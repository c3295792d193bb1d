"""``irregulars kit``: the files for Kubernetes, systemd, Prometheus and Grafana, out of an installed package."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from irregulars.infra.commands.options import open_console


def kit(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty; made where it is missing.")],
) -> None:
    """Write out the files for Kubernetes, systemd, Prometheus and Grafana, as they lie in a checkout.

    The commands of infra/docs/install.md work from within that directory; images are built from a checkout.

    Example: irregulars kit kit && kubectl kustomize kit/infra/kit/kubernetes/overlays/small
    """
    from irregulars.infra.kit.shipped_files import FOLDERS, write_kit

    written = [path.relative_to(directory).as_posix() for path in write_kit(directory)]
    folders = Counter(next(one for one in FOLDERS if path.startswith(f"infra/{one}/")) for path in written)
    console = open_console()
    for folder, count in folders.items():
        console.print(f"{count:>3} files  {directory}/infra/{folder}", markup=False, soft_wrap=True)

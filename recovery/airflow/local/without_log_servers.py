"""Airflow's own `standalone`, as a program, without its two log servers.

python -m recovery.airflow.local.without_log_servers

Scheduler and triggerer each start one (ports 8793 and 8794), which listens on every address of the machine and has no
setting to say another. The API server reads the logs from the same directory.
"""

from __future__ import annotations

from typing import Any

from airflow.cli.commands import standalone_command
from airflow.configuration import write_default_airflow_configuration_if_needed

_SERVE_LOGS = ("scheduler", "triggerer")


class _Component(standalone_command.SubCommand):
    """One of Airflow's components, as `standalone` starts it."""

    def __init__(self, parent: Any, name: str, command: list[str], env: dict[str, str]) -> None:
        more = ["--skip-serve-logs"] if name in _SERVE_LOGS else []
        super().__init__(parent, name=name, command=[*command, *more], env=env)


if __name__ == "__main__":
    # As Airflow's command line does first. Else each component writes airflow.cfg, with a key of its own for what
    # connections hide, or reads the empty file of another and has no key.
    write_default_airflow_configuration_if_needed()
    standalone_command.SubCommand = _Component
    standalone_command.StandaloneCommand().run()

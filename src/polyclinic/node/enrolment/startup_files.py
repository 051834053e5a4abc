"""FLARE's own files: kits of server, administrator and site, written so that a site refuses code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from polyclinic.node.enrolment.folders import private, write_json
from polyclinic.protocol.wire import encoding as wire

PROJECT: Final = "polyclinic"
ADMIN: Final = "coordinator@polyclinic.local"
CONTROLLER: Final = "polyclinic.node.flare.controller.StudyController"
EXECUTOR: Final = "polyclinic.node.flare.executor.StudyExecutor"
LOST: Final = 30  # seconds without a heartbeat until FLARE forgets a site
FRAME: Final = wire.LIMIT + 16 * 2**20  # bytes; the longest frame that FLARE may believe

# One administrator, who may submit studies and nothing else that runs anything: no code, no shell.
PERMISSIONS: Final = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {
            "submit_job": "any",
            "manage_job": "any",
            "view": "any",
            "operate": "any",
            "download_job": "any",
            "clone_job": "none",
            "shell_commands": "none",
            "byoc": "none",
            "server-predeployed-flwr": "none",
        }
    },
}


def _log() -> dict[str, object]:
    def file(name: str, level: str) -> dict[str, object]:
        return {
            "class": "logging.handlers.RotatingFileHandler",
            "level": level,
            "formatter": "plain",
            "filename": name,
            "mode": "a",
            "maxBytes": 5_000_000,
            "backupCount": 3,
        }

    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "plain": {
                "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
                "fmt": "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s",
            }
        },
        "handlers": {"all": file("log.txt", "INFO"), "errors": file("error_log.txt", "ERROR")},
        "loggers": {"root": {"level": "INFO", "handlers": ["all", "errors"]}},
    }


def _line() -> dict[str, object]:
    """How a line behaves on which packets vanish without a word: cut after 30 s, and called anew.

    Left alone, TCP would try again ever more rarely, and a site would come back minutes after its network.
    """
    options = {
        "grpc.max_send_message_length": FRAME,
        "grpc.max_receive_message_length": FRAME,
        "grpc.keepalive_time_ms": 10_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.http2.max_ping_strikes": 0,
        "grpc.http2.min_ping_interval_without_data_ms": 5_000,
    }
    return {"format_version": 2, "grpc": {"options": [[k, v] for k, v in options.items()]}}


def _write(folder: Path, startup: dict[str, Any], texts: dict[str, str], local: dict[str, Any]) -> None:
    for place in (folder.parent, folder, folder / "transfer"):
        private(place)
    for name, value in startup.items():
        write_json(private(folder / "startup") / name, value)
    for name, text in texts.items():
        path = folder / "startup" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
    for name, value in local.items():
        write_json(private(folder / "local") / name, value)


def inside(host: str) -> str:
    """Address at which the coordinator's own machine reaches it, whatever its name outside is."""
    return host if host.startswith("127.") else "127.0.0.1"


def server_kit(folder: Path, *, host: str, port: int, admin_port: int, texts: dict[str, str]) -> None:
    """The server's workspace; its jobs and snapshots stay inside it, not in /tmp (FLARE wants whole paths)."""
    store = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    service = {
        "name": PROJECT,
        "service": {"target": f"{host}:{port}", "scheme": "grpc"},
        "admin_server": host,
        "admin_host": inside(host),  # the coordinator's own commands only, whatever the firewall says
        "admin_port": admin_port,
        "ssl_private_key": "server.key",
        "ssl_cert": "server.crt",
        "ssl_root_cert": "rootCA.pem",
        "connection_security": "mtls",
    }
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [CONTROLLER],
        "servers": [
            {"admin_storage": "transfer", "max_num_clients": 100, "heart_beat_timeout": LOST, "admin_timeout": 10.0}
        ],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {
                "uri_root": "/",
                "storage": {"path": store, "args": {"root_dir": str(folder.resolve() / "snapshots"), "uri_root": "/"}},
            },
        },
        "components": [
            {
                "id": "job_scheduler",
                "path": "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                "args": {
                    "max_jobs": 4,
                    "min_schedule_interval": 0.5,
                    "max_schedule_interval": 3.0,
                    "max_schedule_count": 1_000_000,
                },
            },
            {
                "id": "job_manager",
                "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                "args": {"uri_root": str(folder.resolve() / "jobs"), "job_store_id": "job_store"},
            },
            {"id": "job_store", "path": store},
            {
                "id": "process_launcher",
                "path": "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher",
                "args": {},
            },
        ],
    }
    _write(
        folder,
        {"fed_server.json": {"format_version": 2, "servers": [service]}},
        texts,
        {
            "resources.json": resources,
            "authorization.json": PERMISSIONS,
            "log_config.json": _log(),
            "comm_config.json": _line(),
        },
    )


def admin_kit(folder: Path, *, host: str, admin_port: int, texts: dict[str, str]) -> None:
    """The kit of the one administrator."""
    admin = {
        "project_name": PROJECT,
        "username": ADMIN,
        "server_identity": host,
        "scheme": "grpc",
        "host": "localhost" if inside(host) == "127.0.0.1" else host,
        "port": admin_port,
        "connection_security": "mtls",
        "uid_source": "user_input",
        "with_file_transfer": True,
        "upload_dir": "transfer",
        "download_dir": "transfer",
        "client_key": "client.key",
        "client_cert": "client.crt",
        "ca_cert": "rootCA.pem",
    }
    limits = {"idle_timeout": 900.0, "login_timeout": 10.0, "with_debug": False, "authenticate_msg_timeout": 5.0}
    _write(
        folder,
        {"fed_admin.json": {"format_version": 1, "admin": admin}},
        texts,
        {"resources.json": {"format_version": 1, "admin": {**limits, "prompt": "> "}}},
    )


def site_kit(folder: Path, name: str, *, host: str, port: int, texts: dict[str, str]) -> None:
    """A site's workspace: one class may run, code is refused, our launcher starts it."""
    server = {"name": PROJECT, "service": {"target": f"{host}:{port}", "scheme": "grpc"}, "identity": host}
    client = {
        "ssl_private_key": "client.key",
        "ssl_cert": "client.crt",
        "ssl_root_cert": "rootCA.pem",
        "fqsn": name,
        "is_leaf": True,
        "connection_security": "mtls",
    }
    ours = "polyclinic.node.flare.launcher"
    passes = "nvflare.app_common.resource_{}.passthrough_resource_{}.PassthroughResource{}"
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [EXECUTOR],
        "allow_log_streaming": False,  # FLARE's log of a site stays at the site
        "client": {"retry_timeout": 30, "maint_msg_timeout": 10.0},
        "components": [
            {"id": "resource_manager", "path": passes.format("managers", "manager", "Manager"), "args": {}},
            {"id": "resource_consumer", "path": passes.format("consumers", "consumer", "Consumer"), "args": {}},
            {"id": "process_launcher", "path": f"{ours}.SiteLauncher", "args": {}},
            {"id": "rejoin", "path": f"{ours}.Rejoin", "args": {}},
        ],
    }
    _write(
        folder,
        {"fed_client.json": {"format_version": 2, "servers": [server], "client": client}},
        texts,
        {
            "resources.json": resources,
            "authorization.json": PERMISSIONS,
            "log_config.json": _log(),
            "comm_config.json": _line(),
        },
    )


def job_folder(folder: Path, *, order: str, sites: list[str], quorum: int) -> Path:
    """A job without code: two configuration files that name our classes and carry the signed study."""
    config = private(folder / "app" / "config")
    write_json(
        folder / "meta.json",
        {
            "name": "study",
            "resource_spec": {},
            "min_clients": quorum,
            "deploy_map": {"app": ["server", *sites]},
        },
    )
    empty: dict[str, object] = {"components": [], "task_data_filters": [], "task_result_filters": []}
    write_json(
        config / "config_fed_server.json",
        {"format_version": 2, "workflows": [{"id": "study", "path": CONTROLLER, "args": {"order": order}}], **empty},
    )
    executor = {"tasks": ["study"], "executor": {"path": EXECUTOR, "args": {"order": order}}}
    write_json(config / "config_fed_client.json", {"format_version": 2, "executors": [executor], **empty})
    return folder

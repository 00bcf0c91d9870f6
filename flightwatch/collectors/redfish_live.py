"""Sensors over Redfish: this node's BMC, and cooling and power equipment."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.redfish_settings import RedfishSettings
from flightwatch.collectors.sensor_page import SensorPage
from flightwatch.core.errors import ConfigError, NoData, TransientError
from flightwatch.core.protocols import CaptureContext, Row

if TYPE_CHECKING:
    import http.client
    import ssl

#: Largest answer read, and most resources read in one go.
ANSWER_LIMIT, RESOURCE_LIMIT = 4 << 20, 200
_LONGEST_WAIT_S = 600.0
#: Collections where equipment is found.
CHASSIS = ("/redfish/v1/Chassis",)
EQUIPMENT = tuple(
    f"/redfish/v1/{group}/{kind}"
    for group, kinds in (("ThermalEquipment", ("CDUs", "HeatExchangers", "ImmersionUnits")),
                         ("PowerEquipment", ("RackPDUs", "FloorPDUs", "PowerShelves")))
    for kind in kinds
)  # fmt: skip
#: Links of a chassis or unit that lead to readings. Thermal and Power exist until Redfish 2023, the rest since 2020.
READINGS = ("Thermal", "Power", "EnvironmentMetrics", "ThermalMetrics")
COLLECTIONS = ("PrimaryCoolantConnectors", "SecondaryCoolantConnectors", "Pumps", "Mains", "Branches")


class RedfishClient:
    """Requests to one service: HTTPS (HTTP only to a loopback address), basic authentication, no redirects.

    Parameters
    ----------
    url: scheme, host and port of the service.
    deadline_s: monotonic time after which nothing more is asked.
    """

    def __init__(self, url: str, settings: RedfishSettings, deadline_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme == "https":
            import ssl

            self._context: ssl.SSLContext | None = ssl.create_default_context(cafile=settings.ca_file or None)
            if not settings.verify:
                self._context.check_hostname = False
                self._context.verify_mode = ssl.CERT_NONE
        elif parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost"):
            self._context = None
        else:
            raise ConfigError(f"redfish: {url} must begin with https://")
        if not parts.hostname:
            raise ConfigError(f"redfish: {url} names no host")
        self._host, self._port = parts.hostname, parts.port or (443 if self._context else 80)
        self._settings = settings
        self._deadline_s = deadline_s
        self._connection: http.client.HTTPConnection | None = None
        self.requests = 0

    def get(self, path: str) -> dict[str, Any] | None:
        """Return a resource, None when the service has none there.

        Raises
        ------
        TransientError: unreachable, refused, too slow, too large, or not JSON.
        """
        left_s = min(self._deadline_s - time.monotonic(), _LONGEST_WAIT_S)
        if left_s <= 0 or self.requests >= RESOURCE_LIMIT:
            raise TransientError(f"redfish: {self._host} did not answer everything in time")
        self.requests += 1
        # Imported when a service is asked: the HTTP client costs 2 MB that other agents need not spend.
        import http.client

        try:
            connection = self._connect(left_s)
            connection.request("GET", path, headers=self._headers())
            response = connection.getresponse()
            body = response.read(ANSWER_LIMIT + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise TransientError(f"redfish: {self._host} cannot be asked: {error or type(error).__name__}") from error
        if response.status == 404:
            return None
        if response.status in (401, 403):
            raise TransientError(f"redfish: {self._host} refuses the user {self._settings.username!r}")
        if response.status != 200 or len(body) > ANSWER_LIMIT:
            raise TransientError(f"redfish: {self._host} answers {path} with status {response.status}")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise TransientError(f"redfish: {self._host} answers {path} with something that is not JSON") from error
        return document if isinstance(document, dict) else None

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            import http.client

            if self._context is not None:
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=timeout_s, context=self._context
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        return self._connection

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "OData-Version": "4.0"}
        if self._settings.username:
            pair = f"{self._settings.username}:{self._settings.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers


def readings(client: RedfishClient, roots: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the resources with readings below the members of some collections.

    Sensors are read one by one only where a chassis has neither Thermal nor ThermalSubsystem.
    """
    for root in roots:
        for path in _members(client.get(root)):
            unit = client.get(path)
            if unit is None:
                continue
            found = False
            linked = [_link(unit, name) for name in READINGS]
            subsystem = _link(unit, "ThermalSubsystem")
            if subsystem and not _link(unit, "Thermal") and (thermal := client.get(subsystem)) is not None:
                linked += [_link(thermal, "ThermalMetrics"), *_members(client.get(_link(thermal, "Fans") or ""))]
            for collection in COLLECTIONS:
                linked += _members(client.get(link)) if (link := _link(unit, collection)) else []
            for path_below in filter(None, linked):
                resource = client.get(path_below)
                if resource is not None:
                    found = True
                    yield resource
            sensors = _link(unit, "Sensors")
            if not found and sensors:
                yield from (
                    sensor for path_below in _members(client.get(sensors)) if (sensor := client.get(path_below))
                )


def _link(resource: dict[str, Any], name: str) -> str | None:
    value = resource.get(name)
    path = value.get("@odata.id") if isinstance(value, dict) else None
    return path if isinstance(path, str) and path.startswith("/redfish/") and path.isprintable() else None


def _members(collection: dict[str, Any] | None) -> list[str]:
    members = collection.get("Members") if collection else None
    paths = [_link({"m": member}, "m") for member in members] if isinstance(members, list) else []
    return [path for path in paths if path][:RESOURCE_LIMIT]


class RedfishCollector:
    """Reads `redfish.url` into the node's sensors and `redfish.facility_urls` into facility_samples."""

    name = "redfish"
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.redfish.interval_seconds
        self._environment = environment
        self._page = SensorPage(environment, self.name)

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Ask every service once.

        Raises
        ------
        NoData: none is configured, or a recorded tree. TransientError: none answered.
        """
        settings = self._environment.redfish
        if not self._environment.live or not (settings.url or settings.facility_urls):
            raise NoData("no Redfish service is configured")
        rows: list[Row] = []
        failures: list[str] = []
        deadline_s = time.monotonic() + settings.timeout_seconds
        for url in filter(None, (settings.url, *settings.facility_urls)):
            client = RedfishClient(url, settings, deadline_s)
            try:
                rows += self._node(client, now_ms) if url == settings.url else _facility(client, now_ms)
            except TransientError as error:
                failures.append(str(error))
            finally:
                client.close()
        if failures and not rows:
            raise TransientError(failures[0])
        return rows

    def _node(self, client: RedfishClient, now_ms: int) -> list[Row]:
        from flightwatch.collectors.captures.redfish import RedfishParser

        document = json.dumps(list(readings(client, CHASSIS))).encode()
        return self._page.take(RedfishParser().parse(io.BytesIO(document), CaptureContext("redfish", now_ms)), now_ms)


def _facility(client: RedfishClient, now_ms: int) -> list[Row]:
    from flightwatch.collectors.captures.facility import FacilityRedfishParser

    document = json.dumps(list(readings(client, EQUIPMENT))).encode()
    found = FacilityRedfishParser().parse(io.BytesIO(document), CaptureContext("redfish", now_ms))
    return [item for item in found if isinstance(item, Row)]

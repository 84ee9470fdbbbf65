"""The store contract on Azurite, the emulator of Azure's blob storage."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cutwater.protocol.base.errors import StoreError
from cutwater.store.contract import Store
from cutwater.store.opening import open_place
from tests.support.azurite import ACCOUNT, BINARY, CONTAINER, INSTALL, azurite
from tests.support.store_contract import StoreContract, check_race_of_processes

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no Azurite; install it with: {INSTALL}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with azurite(tmp_path_factory.mktemp("azurite") / "data") as environment:
        yield environment


@pytest.fixture
def url(server: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for key, value in server.items():
        monkeypatch.setenv(key, value)
    return f"az://{CONTAINER}/{tmp_path.name}"


class TestAzureStore(StoreContract):
    @pytest.fixture
    def store(self, url: str) -> Store:
        return open_place(url, create=True)

    def test_many_objects_are_listed_and_deleted(self, store: Store) -> None:
        """Deletes fewer at once than the contract's own test: Azurite drops the connection of a large batch."""
        names = [f"many/{i:05}" for i in range(1100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.put(name, b""), names))
        assert store.list("many/") == names
        assert store.list("many/", after="many/00998") == names[999:]
        for start in range(0, len(names), 50):
            store.delete(names[start : start + 50])
        assert store.list("") == []

    def test_of_many_processes_exactly_one_creates(self, store: Store) -> None:
        check_race_of_processes(store)

    def test_the_locations_of_objects(self, store: Store, url: str) -> None:
        host = f"{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"
        assert store.spark_url("a/b") == f"{url.replace(f'az://{CONTAINER}', f'abfss://{host}')}/a/b"


def test_an_unusable_container_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        StoreError, match=r"az://nope/x cannot be used as a store: .*AZURE_STORAGE_ACCOUNT_KEY"
    ):
        open_place("az://nope/x", create=True)

import pytest

from evaluation import store


@pytest.fixture
def one_code_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's keys as they are for one version of the code, whatever is being edited beside the tests."""
    monkeypatch.setattr(store, "code_version", lambda: "code")

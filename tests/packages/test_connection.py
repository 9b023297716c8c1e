"""Logins go to their own host and into no message; proxies and certificates are those of the settings."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.packages import connection
from bench.packages.connection import reason
from bench.packages.errors import CannotDownload
from bench.packages.package_index import PackageIndex
from bench.packages.pip_settings import PipSettings
from tests.packages.web import DATA, NAME, PAGE, WHEEL, Web

SECRET = "s3cret"


@pytest.fixture
def netrc(tmp_path: Path) -> str:
    path = tmp_path / "netrc"
    path.write_text(f"machine 127.0.0.1 login me password {SECRET}\nmachine localhost login you password x\n")
    path.chmod(0o600)
    return str(path)


def read(settings: PipSettings, *, mirrors: tuple[str, ...] = ()) -> bytes | None:
    """Read the wheel from the first place that offers it; None if none does."""
    index = PackageIndex(settings, mirrors)
    for file in index.offers(WHEEL):
        with index.open(file.url) as answer:
            data: bytes = answer.read()
            return data
    return None


# --- logins ---------------------------------------------------------------------------------------------


def test_a_password_in_the_configuration_opens_the_index_and_is_never_shown(web: Web) -> None:
    web.publish()
    web.login = f"me:{SECRET} x"
    index = PackageIndex(PipSettings((web.simple_with(f"me:{SECRET}%20x"),)))
    (file,) = index.files("thing")
    assert file.url == f"{web.url}/files/{NAME}"
    with index.open(file.url) as answer:
        assert answer.read() == DATA
    assert index.size(file) == len(DATA)
    assert {*web.logins} == {f"me:{SECRET} x"}
    wrong = PackageIndex(PipSettings((web.simple_with("me:wr0ng"),)))
    assert wrong.files("thing") == []
    address = web.simple.removeprefix("http://")
    assert wrong.troubles == (
        f"http://****@{address}: 401 Unauthorized, it asks for another user name or password",
    )


def test_a_password_in_netrc_opens_the_index(web: Web, netrc: str) -> None:
    web.publish()
    web.login = f"me:{SECRET}"
    assert read(PipSettings((web.simple,), netrc=netrc)) == DATA
    assert read(PipSettings((web.simple,))) is None


def test_a_password_in_the_configuration_goes_before_one_in_netrc(web: Web, netrc: str) -> None:
    web.publish()
    web.login = "other:word"
    assert read(PipSettings((web.simple_with("other:word"),), netrc=netrc)) == DATA


def test_a_password_is_not_sent_over_another_scheme(web: Web, second: Web) -> None:
    web.publish()
    second.link(f"{web.url}/files/{NAME}#sha256={WHEEL.sha256}")
    secure = web.simple_with(f"me:{SECRET}").replace("http:", "https:")
    assert read(PipSettings((second.simple, secure))) == DATA
    assert {*web.logins} == {None}


def test_a_host_is_the_same_in_capital_letters(web: Web) -> None:
    web.publish()
    web.login = f"me:{SECRET}"
    web.link(f"http://LOCALHOST:{web.port}/files/{NAME}#sha256={WHEEL.sha256}")
    local = web.simple_with(f"me:{SECRET}").replace("127.0.0.1", "LocalHost")
    assert read(PipSettings((local,))) == DATA
    assert {*web.logins} == {f"me:{SECRET}"}


@pytest.mark.parametrize("url", ["http://[bad/simple", f"http://me:{SECRET}[@host/simple", "nothing://host"])
def test_an_index_that_is_no_url_is_a_trouble(url: str) -> None:
    index = PackageIndex(PipSettings((url,), (url,)), (url,))
    assert index.files("thing") == []
    (told,) = index.troubles
    assert ": " in told and SECRET not in told


@pytest.mark.parametrize("text", ["machine", "\udcff", None])
def test_a_netrc_that_cannot_be_read_has_no_logins(web: Web, tmp_path: Path, text: str | None) -> None:
    web.publish()
    if text is not None:
        (tmp_path / "netrc").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read(PipSettings((web.simple,), netrc=str(tmp_path / "netrc"))) == DATA


def test_a_password_is_sent_to_its_host_again_after_a_redirect_there(web: Web) -> None:
    web.publish()
    web.login = f"me:{SECRET}"
    web.pages["/simple/thing/page"] = web.pages.pop(PAGE)
    web.redirects[PAGE] = "/simple/thing/page"
    assert read(PipSettings((web.simple_with(f"me:{SECRET}"),))) == DATA
    assert {*web.logins} == {f"me:{SECRET}"}


@pytest.mark.parametrize("way", ["redirect", "link"])
def test_a_password_is_not_sent_to_another_host(web: Web, second: Web, way: str) -> None:
    second.publish()
    web.login = f"me:{SECRET}"
    if way == "redirect":
        web.redirects[PAGE] = f"{second.simple}/thing/"
    else:
        web.link(f"{second.url}/files/{NAME}#sha256={WHEEL.sha256}")
    assert read(PipSettings((web.simple_with(f"me:{SECRET}"),))) == DATA
    assert {*web.logins} == {f"me:{SECRET}"}
    assert {*second.logins} == {None}


def test_a_page_cannot_replace_a_login_and_its_own_are_not_shown(web: Web, second: Web, netrc: str) -> None:
    web.publish()
    web.login = f"me:{SECRET}"
    evil, other = (
        web.url.replace("//", "//evil:evil@"),
        web.url.replace("//127.0.0.1", "//evil:evil@localhost"),
    )
    second.link(f"{evil}/files/{NAME}#sha256={WHEEL.sha256}")
    second.link(f"{other}/files/{NAME}#sha256={'0' * 64}")
    own = PackageIndex(PipSettings((second.simple, web.simple_with(f"me:{SECRET}")), netrc=netrc))
    assert [file.url for file in own.files("thing")][:2] == [
        f"{web.url}/files/{NAME}", f"http://localhost:{web.port}/files/{NAME}",
    ]  # fmt: skip
    assert web.logins == [f"me:{SECRET}"]
    assert read(PipSettings((second.simple,), netrc=netrc)) == DATA
    assert {*web.logins} == {f"me:{SECRET}"}


def test_a_link_may_have_a_login_of_its_own(web: Web, second: Web) -> None:
    web.publish()
    web.login = "link:word"
    second.link(f"{web.url.replace('//', '//link:word@')}/files/{NAME}#sha256={WHEEL.sha256}")
    assert read(PipSettings((second.simple,))) == DATA


def test_a_mirror_may_have_a_login(web: Web) -> None:
    web.login = f"me:{SECRET}"
    web.pages["/debian/pool/main/t"] = DATA
    index = PackageIndex(PipSettings(()), (f"{web.url.replace('//', f'//me:{SECRET}@')}/debian",))
    with index.open(f"{web.url}/debian/pool/main/t") as answer:
        assert answer.read() == DATA


# --- proxies and certificates ---------------------------------------------------------------------------


def test_a_proxy_of_the_configuration_is_used(web: Web) -> None:
    page = f'<a href="/f#sha256={WHEEL.sha256}">'
    web.pages |= {"http://index.invalid/simple/thing/": page.encode(), "http://index.invalid/f": DATA}
    assert read(PipSettings(("http://index.invalid/simple",), proxy=web.url)) == DATA
    assert web.paths == ["http://index.invalid/simple/thing/", "http://index.invalid/f"]


@pytest.mark.parametrize("option", ["certificates", "client_certificate"])
def test_certificates_that_cannot_be_read_are_named_with_what_to_do(option: str) -> None:
    with pytest.raises(CannotDownload, match="certificates") as caught:
        PackageIndex(PipSettings(())._replace(**{option: "/no/such.pem"}))  # type: ignore[arg-type]
    assert caught.value.where == "/no/such.pem"
    named = {
        "certificates": "`cert` in pip's configuration, or REQUESTS_CA_BUNDLE",
        "client_certificate": "`client-cert` in pip's configuration",
    }
    assert named[option] in caught.value.advice
    assert str(caught.value).startswith("/no/such.pem: ")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, with its key in the same file."""
    folder = tmp_path_factory.mktemp("certificate")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    )
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {folder}/key -out {folder}/cert"
    subprocess.run(command.split(), check=True, capture_output=True)
    (folder / "both.pem").write_bytes((folder / "cert").read_bytes() + (folder / "key").read_bytes())
    return folder / "both.pem"


@pytest.fixture
def secure(web: Web, certificate: Path) -> Iterator[str]:
    """The index of a server whose certificate only the tests know; it wants one of its clients too."""
    web.publish()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    assert web.server is not None
    web.server.socket = context.wrap_socket(web.server.socket, server_side=True)
    yield web.simple.replace("http:", "https:")


def test_certificates_are_checked_unless_their_host_is_trusted(secure: str, certificate: Path) -> None:
    pem = str(certificate)
    own = PipSettings((secure,), client_certificate=pem)
    unknown = PackageIndex(own)
    assert unknown.files("thing") == []
    assert "certificate verify failed" in unknown.troubles[0]
    assert read(own._replace(certificates=pem)) == DATA
    port = secure.rpartition(":")[2].partition("/")[0]
    for name in ("127.0.0.1", f"127.0.0.1:{port}"):
        assert read(own._replace(trusted_hosts=(name,))) == DATA
    for name in ("127.0.0.1:1", "other"):
        assert read(own._replace(trusted_hosts=(name,))) is None
    assert read(PipSettings((secure,), certificates=pem)) is None  # without a certificate of the client


@pytest.fixture
def opened_with(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """List the context of each https URL that is opened; no connection is made."""
    used: list[ssl.SSLContext] = []
    monkeypatch.setattr(
        "urllib.request.HTTPSHandler.https_open", lambda handler, _: used.append(handler._context)
    )
    return used


def test_trust_is_in_the_host_behind_a_proxy_and_not_in_the_proxy(opened_with: list[ssl.SSLContext]) -> None:
    for trusted, mode in (("index.example", ssl.CERT_NONE), ("proxy.example", ssl.CERT_REQUIRED)):
        handler = connection._Https(PipSettings((), trusted_hosts=(trusted,)))
        request = urllib.request.Request("https://index.example/simple/")
        request.set_proxy("proxy.example:3128", "https")
        handler.https_open(request)
        assert opened_with[-1].verify_mode == mode
        assert opened_with[-1].check_hostname == (mode == ssl.CERT_REQUIRED)


def test_the_machines_authorities_are_read_once_by_the_first_url_whose_certificate_is_checked(
    opened_with: list[ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them takes longer than most other steps of a command that opens no https URL."""
    read_times, create = [], ssl.create_default_context
    monkeypatch.setattr(
        "ssl.create_default_context", lambda **given: read_times.append(given) or create(**given)
    )
    handler = connection._Https(PipSettings((), trusted_hosts=("mine",)))
    handler.https_open(urllib.request.Request("https://mine/"))
    assert len(read_times) == 0
    for _ in range(2):
        handler.https_open(urllib.request.Request("https://other/"))
    assert len(read_times) == 1
    assert opened_with[1] is opened_with[2]


def test_a_server_can_put_no_words_into_a_reason() -> None:
    error = urllib.error.HTTPError("http://h/", 404, f"me:{SECRET}", None, None)  # type: ignore[arg-type]
    assert reason(error) == "404 Not Found"
    line = http.client.BadStatusLine(f"me:{SECRET}")
    assert reason(line) == "it does not answer as a web server does (BadStatusLine)"
    assert reason(OSError(f"cannot open https://me:{SECRET}@host/")) == "cannot open https://****@host/"

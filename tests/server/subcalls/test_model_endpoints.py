"""Sub-calls of resets go to endpoints on the operator's list, and nowhere else."""

import pytest
from pydantic import SecretStr

from repl_env import LLM
from repl_server.protocol import ModelEndpoint
from repl_server.settings import Settings
from repl_server.subcalls import check_list, is_allowed, llm_of
from repl_server.tenants import RequestError

URLS = ("https://models.example/v1", "http://gateway:9000/sessions/*", "http://[::1]:8080/v1/")


@pytest.mark.parametrize(
    "url",
    [
        "https://models.example/v1",
        "https://models.example/v1/",
        "https://models.example:443/v1",
        "https://MODELS.example/v1",
        "http://gateway:9000/sessions/7/v1",
        "http://gateway:9000/sessions",
        "http://[::1]:8080/v1",
        "http://[0:0:0:0:0:0:0:1]:8080/v1/",
        "http://gateway:9000/sessions/7.1_a~b@c:d=e+f/",
    ],
)
def test_allowed_endpoints(url):
    assert is_allowed(url, URLS)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "models.example/v1",
        "http://models.example/v1",
        "https://models.example/v2",
        "https://models.example/v1/more",
        "https://models.example/",
        "https://models.example:8443/v1",
        "https://models.example.evil.example/v1",
        "https://evil.example/v1#https://models.example/v1",
        "https://evil.example\\@models.example/v1",
        "https://models.example@evil.example/v1",
        "https://user:word@models.example/v1",
        "https://models.example/v1?to=evil",
        "https://models.example/v1#x",
        "https://models.example/x/../v1",
        "https://models.example/%761",
        "https://models.example/v1\n",
        " https://models.example/v1",
        "https://models.example:port/v1",
        "http://gateway:9000/sessions/../admin",
        "http://gateway:9000/sessions/7/%2e%2e/%2e%2e/admin",
        "http://gateway:9000/sessionsx",
        "http://gateway/sessions/7",
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
        *(
            f"http://gateway:9000/sessions/{below}"
            for below in (
                *(
                    "..;/admin",
                    "7/..;/..;/admin",
                    ";/admin",
                    "7;x=1/v1",
                    "..;",
                    ".;/x",
                    "...",
                    "...;",
                ),
                *("..%2fadmin", "%2e%2e/admin", "%2e./admin", "..%5cadmin", "7%2fv1", "%3b", "%00"),
                *("./7", "7/.", "..", "../sessions/7", "7/../8", "/7", "7//v1", "7/v1//", "/"),
                *(
                    "..\\admin",
                    "7\\..\\admin",
                    "\\",
                    "7?x",
                    "7?",
                    "7#x",
                    "7#",
                    "7 ",
                    "7\t",
                    "7\r\n",
                ),
                *(
                    "*",
                    "7/*",
                    "\u2025/admin",
                    "7\uff0f..",
                    "caf\u00e9",
                    "7\x00",
                    "7\x7f",
                    "<x>",
                    "7|8",
                ),
            )
        ),
        *(
            f"{start}/sessions/7"
            for start in (
                *("http://gateway:9000.", "http://gateway.:9000", "http://gateway:09000"),
                *("http://gateway:+9000", "http://gateway: 9000", "http://gateway:9_000"),
                *(
                    "http://gateway:\uff19000",
                    "http://g\u0430teway:9000",
                    "http://gateway:9000:9000",
                ),
                *("http://@gateway:9000", "http://x@gateway:9000", "http://:@gateway:9000"),
                *("http://gateway%3a9000", "http://gateway%2e:9000", "http://[gateway]:9000"),
                *(
                    "http:/gateway:9000",
                    "http:gateway:9000",
                    "//gateway:9000",
                    "http:///gateway:9000",
                ),
                *("http:\\\\gateway:9000", "HTTP://gateway:9000", "https+http://gateway:9000"),
                *("http://gateway:9000;x", "http://gateway;:9000", "http://gateway,evil:9000"),
            )
        ),
        "https://models.example:/v1",
        "https://models.example.:443/v1",
        "https://m\u00f6dels.example/v1",
        "http://[::1]evil:8080/v1",
        "http://[::1%25lo]:8080/v1",
        "http://::1:8080/v1",
    ],
)
def test_forbidden_endpoints(url):
    assert not is_allowed(url, URLS)


def test_an_empty_list_forbids_all_endpoints():
    assert not is_allowed("https://models.example/v1", ())


def test_the_model_of_a_reset():
    asked = ModelEndpoint(
        model="m",
        base_url="https://models.example/v1",
        api_key=SecretStr("key"),
        headers={"X-A": SecretStr("secret")},
        sampling={"temperature": 0},
    )
    llm = llm_of(Settings(llm_urls=URLS), llm=asked)

    assert llm == LLM(
        "m", "https://models.example/v1", "key", {"X-A": "secret"}, {"temperature": 0}
    )
    assert "'key'" not in repr(asked) and "secret" not in repr(asked)


def test_a_token_needs_the_router_of_hugging_face_on_the_list():
    token = SecretStr("hf_x")
    with pytest.raises(RequestError, match="FORBIDDEN") as caught:
        llm_of(Settings(llm_urls=URLS), hf_token=token)
    assert "hf_x" not in str(caught.value.data())
    listing = Settings(llm_urls=("https://router.huggingface.co/v1",))
    assert llm_of(listing, hf_token=token, llm_model="m") == LLM("m", None, "hf_x")


def test_the_operator_s_model_answers_clients_without_one():
    own = LLM("theirs", "http://inside:1/v1", "operator's key")
    settings = Settings(llm=own)

    assert llm_of(settings) == own
    assert llm_of(settings, llm_model="other").model == "other"
    assert llm_of(settings, llm_model="other").base_url == own.base_url
    assert llm_of(settings, llm=ModelEndpoint(model="other")).api_key == "operator's key"


def test_a_model_name_alone_uses_no_token_of_the_server(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_server")

    assert llm_of(Settings(), llm_model="m") == LLM()


def test_both_notations_at_once_are_refused():
    with pytest.raises(RequestError, match="VALIDATION_ERROR"):
        llm_of(Settings(), llm=ModelEndpoint(model="m"), llm_model="m")


@pytest.mark.parametrize(
    "name",
    ["Host", "hOST ", "X-Forwarded-Host", "x_forwarded_host", "X-Original-URL", "Proxy-Connection"],
)
def test_no_header_redirects_the_request(name):
    """The address is listed, and a proxy behind it would send the request to another site."""
    asked = ModelEndpoint(model="m", base_url=URLS[0], headers={name: SecretStr("inside.example")})
    with pytest.raises(RequestError, match="FORBIDDEN") as caught:
        llm_of(Settings(llm_urls=URLS), llm=asked)
    assert "inside.example" not in str(caught.value.data())


@pytest.mark.parametrize("name", ["X-Api-Key", "Authorization", "HTTP-Referer", "X-Title"])
def test_headers_that_endpoints_ask_for_may_be_sent(name):
    asked = ModelEndpoint(model="m", base_url=URLS[0], headers={name: SecretStr("x")})
    assert llm_of(Settings(llm_urls=URLS), llm=asked).headers == {name: "x"}


def test_a_token_of_another_service_is_not_taken_as_hugging_face_s():
    """Its library would call that service, which is not on the list."""
    listing = Settings(llm_urls=("https://router.huggingface.co/v1",))
    for given in (
        {"hf_token": SecretStr("sk-x")},
        {"llm": ModelEndpoint(api_key=SecretStr("sk-x"))},
    ):
        with pytest.raises(RequestError, match="VALIDATION_ERROR") as caught:
            llm_of(listing, **given)
        assert "sk-x" not in str(caught.value.data())


@pytest.mark.parametrize(
    "url", ["https://x/a;b/*", "https://x//a/*", "https://x/%41", "https://x/../*"]
)
def test_an_ambiguous_endpoint_cannot_be_listed(url):
    with pytest.raises(ValueError, match="is not an endpoint"):
        check_list((url,))

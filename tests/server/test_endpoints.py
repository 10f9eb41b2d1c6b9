"""Sub-calls of resets go to endpoints that the operator listed, and nowhere else."""

import pytest
from pydantic import SecretStr

from repl_env import LLM
from repl_server.endpoints import listed, llm_of
from repl_server.refusal import Refusal
from repl_server.requests import Endpoint
from repl_server.settings import Settings

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
    ],
)
def test_what_is_listed(url):
    assert listed(url, URLS)


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
    ],
)
def test_what_is_not(url):
    assert not listed(url, URLS)


def test_an_empty_list_lets_nothing_through():
    assert not listed("https://models.example/v1", ())


def test_the_model_of_a_reset():
    asked = Endpoint(
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


def test_a_token_needs_hugging_face_s_router_on_the_list():
    token = SecretStr("hf_x")
    with pytest.raises(Refusal, match="FORBIDDEN") as caught:
        llm_of(Settings(llm_urls=URLS), hf_token=token)
    assert "hf_x" not in str(caught.value.data())
    listing = Settings(llm_urls=("https://router.huggingface.co/v1",))
    assert llm_of(listing, hf_token=token, llm_model="m") == LLM("m", None, "hf_x")


def test_the_operator_s_model_answers_who_brings_none():
    own = LLM("theirs", "http://inside:1/v1", "operator's key")
    settings = Settings(llm=own)

    assert llm_of(settings) == own
    assert llm_of(settings, llm_model="other").model == "other"
    assert llm_of(settings, llm_model="other").base_url == own.base_url
    assert llm_of(settings, llm=Endpoint(model="other")).api_key == "operator's key"


def test_a_name_alone_uses_no_token_of_the_server(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_server")

    assert llm_of(Settings(), llm_model="m") == LLM()


def test_both_forms_at_once():
    with pytest.raises(Refusal, match="VALIDATION_ERROR"):
        llm_of(Settings(), llm=Endpoint(model="m"), llm_model="m")


@pytest.mark.parametrize(
    "name",
    ["Host", "hOST ", "X-Forwarded-Host", "x_forwarded_host", "X-Original-URL", "Proxy-Connection"],
)
def test_no_header_leads_elsewhere(name):
    """The address is listed, and a proxy behind it would send the request to another site."""
    asked = Endpoint(model="m", base_url=URLS[0], headers={name: SecretStr("inside.example")})
    with pytest.raises(Refusal, match="FORBIDDEN") as caught:
        llm_of(Settings(llm_urls=URLS), llm=asked)
    assert "inside.example" not in str(caught.value.data())


@pytest.mark.parametrize("name", ["X-Api-Key", "Authorization", "HTTP-Referer", "X-Title"])
def test_headers_that_endpoints_ask_for_may_be_sent(name):
    asked = Endpoint(model="m", base_url=URLS[0], headers={name: SecretStr("x")})
    assert llm_of(Settings(llm_urls=URLS), llm=asked).headers == {name: "x"}


def test_a_token_of_somebody_else_is_not_taken_for_hugging_face_s():
    """Its library would ask that service, which nobody listed."""
    listing = Settings(llm_urls=("https://router.huggingface.co/v1",))
    for given in ({"hf_token": SecretStr("sk-x")}, {"llm": Endpoint(api_key=SecretStr("sk-x"))}):
        with pytest.raises(Refusal, match="VALIDATION_ERROR") as caught:
            llm_of(listing, **given)
        assert "sk-x" not in str(caught.value.data())

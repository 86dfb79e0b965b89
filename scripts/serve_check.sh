#!/usr/bin/env bash
# What a server with real models does with curl, a kill -9, bad requests and a reader that is slow.
#
#     scripts/serve_check.sh [TARGET [DRAFT]]
#
# Needs curl, and anydraft on the PATH. Exits with 1 at the first answer that is not as it must be. Not part of
# `make test`: its sister checks with random models are in tests/server.
set -euo pipefail

target=${1:-qwen2.5-coder-0.5b-instruct}
draft=${2:-smollm2-135m-instruct}
port=${PORT:-18080}
url=http://127.0.0.1:$port
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

start() {
    anydraft serve "$target" --draft "$draft" --port "$port" >"$work/log" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        curl -sf "$url/ready" >/dev/null && return
        kill -0 "$server" 2>/dev/null || { cat "$work/log"; exit 1; }
        sleep 0.2
    done
    echo "FAILED  the server was not ready in two minutes"
    exit 1
}

post() { curl -s -o "$work/body" -w '%{http_code}' "$url$1" -H 'content-type: application/json' "${@:2}"; }
field() { python3 -c 'import json, sys; v = json.load(open(sys.argv[1])); print(eval(sys.argv[2], {"v": v}))' "$work/body" "$1"; }

is() { # what, found, expected
    if [ "$2" == "$3" ]; then
        local said=${2//$'\n'/ }
        echo "ok      $1: ${said:0:60}"
    else
        echo "FAILED  $1: $2, not $3"
        head -c 600 "$work/body"
        exit 1
    fi
}

question='"messages": [{"role": "user", "content": "Write a Python function that adds two numbers. Code only."}]'
ask() { post /v1/chat/completions -d "{$question, \"max_tokens\": 40, \"temperature\": 0 $1}"; }

start
is "GET /v1/models" "$(curl -s "$url/v1/models" | python3 -c 'import json, sys; print(json.load(sys.stdin)["object"])')" list
is "a chat" "$(ask '')" 200
text=$(field 'v["choices"][0]["message"]["content"]')
is "the target alone says the same" "$(ask ', "speculative": {"method": "none"}')" 200
is "  text" "$(field 'v["choices"][0]["message"]["content"]')" "$text"
curl -sN "$url/v1/chat/completions" -H 'content-type: application/json' \
    -d "{$question, \"max_tokens\": 40, \"temperature\": 0, \"stream\": true}" >"$work/stream"
is "a stream ends" "$(grep -c '^data: \[DONE\]' "$work/stream")" 1
is "  with the same text" "$(sed -n 's/^data: {/{/p' "$work/stream" | python3 -c '
import json, sys
print("".join(c["delta"].get("content") or "" for line in sys.stdin for c in json.loads(line)["choices"]))')" "$text"
is "a completion with log probabilities" \
    "$(post /v1/completions -d '{"prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0, "logprobs": 2}')" 200
is "  of each token" "$(field 'len(v["choices"][0]["logprobs"]["token_logprobs"])')" 8

is "malformed JSON" "$(post /v1/completions -d '{"prompt": ')" 400
is "  in OpenAI's shape" "$(field 'v["error"]["type"]')" invalid_request_error
python3 -c 'print("{\"prompt\": \"" + "word " * 200_000 + "\", \"max_tokens\": 4}")' >"$work/large"
is "a prompt of 1 MB" "$(post /v1/completions --data-binary "@$work/large")" 400
python3 -c 'print("{\"prompt\": \"" + "x" * 40_000_000 + "\"}")' >"$work/huge"
is "a body of 40 MB" "$(post /v1/completions --data-binary "@$work/huge")" 413
is "top_p of -1" "$(ask ', "top_p": -1')" 400
is "n of a billion" "$(ask ', "n": 1000000000')" 400
is "an unknown method" "$(ask ', "speculative": {"method": "magic"}')" 400
is "it goes on" "$(ask '')" 200
is "  as before" "$(field 'v["choices"][0]["message"]["content"]')" "$text"

# 200 bytes a second: far slower than the tokens come.
timeout 4 curl -sN --limit-rate 200 "$url/v1/completions" -H 'content-type: application/json' \
    -d '{"prompt": "Count: 1, 2, 3,", "max_tokens": 300, "temperature": 0, "stream": true}' >"$work/slow" &
sleep 1
is "beside a slow reader" "$(ask '')" 200
is "  the same text" "$(field 'v["choices"][0]["message"]["content"]')" "$text"
wait %2 2>/dev/null || true

curl -sN "$url/v1/chat/completions" -H 'content-type: application/json' \
    -d "{$question, \"max_tokens\": 2000, \"ignore_eos\": true, \"stream\": true}" >"$work/cut" &
sleep 1
kill -9 "$server"
wait "$server" 2>/dev/null || true
is "kill -9 cuts a stream short" "$(grep -c '^data: \[DONE\]' "$work/cut" || true)" 0
start
is "the same port serves again" "$(ask '')" 200
is "  the same text" "$(field 'v["choices"][0]["message"]["content"]')" "$text"
kill -TERM "$server"
wait "$server" && code=0 || code=$?
is "SIGTERM ends it" "$code" 0

#!/bin/sh
# Ask the person who runs this sandbox for what it was not given, and wait for the answer.
# Exit code: 0 yes, 1 no, 2 wrong use, 3 the question could not be put.

gateway=http://gateway.corral

usage() {
    cat >&2 <<'END'
usage: corral-ask host HOST[:PORT] REASON...     have a host opened
       corral-ask budget USD REASON...           have more money for model calls

The answer comes when a person gives it; what happens meanwhile is printed. HOST may be *.DOMAIN.
What this sandbox may reach: http://gateway.corral/policy; what it was refused: http://gateway.corral/denials
END
    exit 2
}

# The question goes over the gateway's own name only, whatever proxy is set.
post() {
    if command -v curl >/dev/null 2>&1; then
        curl -sN --noproxy '*' -X POST -H 'Content-Type: text/plain' --data-binary @- "$1"
    elif command -v python3 >/dev/null 2>&1; then
        python3 -c '
import sys, urllib.request, urllib.error
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    answer = opener.open(urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), {"Content-Type": "text/plain"}))
except urllib.error.HTTPError as error:
    answer = error
for line in answer:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()' "$1"
    elif command -v node >/dev/null 2>&1; then
        node -e '
const url = process.argv[1], chunks = [];
process.stdin.on("data", (chunk) => chunks.push(chunk)).on("end", () => {
  require("http").request(url, {method: "POST", headers: {"Content-Type": "text/plain"}}, (answer) => answer.pipe(process.stdout))
    .on("error", (error) => { console.error(error.message); process.exit(3); }).end(Buffer.concat(chunks));
});' "$1"
    elif command -v wget >/dev/null 2>&1; then
        # Every wget takes a body from its arguments, and some only from there.
        body=$(cat)
        http_proxy='' wget -q -O - --header 'Content-Type: text/plain' --post-data "$body" "$1"
    else
        echo "corral-ask: this image has none of curl, python3, node and wget" >&2
    fi
}

[ $# -ge 3 ] || usage
kind=$1
what=$2
shift 2
case $kind in
    host | budget) ;;
    *) usage ;;
esac

printf '%s\n%s' "$what" "$*" | post "$gateway/ask/$kind" | {
    code=3
    while IFS= read -r line || [ -n "$line" ]; do
        printf 'corral-ask: %s\n' "$line"
        case $line in
            allowed:*) code=0 ;;
            denied:*) code=1 ;;
        esac
    done
    [ $code -ne 3 ] || echo "corral-ask: the gateway did not answer the question" >&2
    exit $code
}

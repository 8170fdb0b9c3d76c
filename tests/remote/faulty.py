"""A server of scripted faults, on the standard library alone."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DESCRIBED = {
    "protocol": 1,
    "reward": "number",
    "class_name": "Number",
    "distribution": "tests",
    "version": "1.0",
    "options": {},
    "defaults": {},
    "range": "",
    "text_limit": None,
    "limits": {"images": 64, "size": 10**6},
}


class Faulty:
    """Answer each request with the next step; the last one stays. `asked` keeps the requests.

    A step is a status with a body, None to hang up, or a function from the request to one of those.
    """

    def __init__(self):
        self.steps, self.asked, self.described = [], [], dict(DESCRIBED)
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def step(self, request):
        self.asked.append(request)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        return step(request) if callable(step) else step

    def handler(self):
        faulty = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer(200, {"state": "ready"} if self.path == "/health" else faulty.described)

            def do_POST(self):
                step = faulty.step(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if step is None:
                    self.close_connection = True
                else:
                    self.answer(*step)

            def answer(self, status, content):
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        return Handler

    def close(self):
        self.http.shutdown()
        self.http.server_close()

# SPDX-License-Identifier: Apache-2.0
"""The cluster's API without a kubectl for each question: on a small machine its start costs more than the answer.

In: the socket of a `kubectl proxy`, which is the cluster's administrator. Out: `Api`: objects as dictionaries.
It must never: take an error for an answer. What a user types goes through kubectl all the same: manifests, `exec`, `logs`.
"""

import contextlib
import http.client
import json
import socket
import urllib.parse

from .space import Failed, until

NAMESPACED = {"Pod": "api/v1", "Event": "api/v1", "DaemonSet": "apis/apps/v1", "Deployment": "apis/apps/v1",
              "NetworkPolicy": "apis/networking.k8s.io/v1", "NetworkAttachmentDefinition": "apis/k8s.cni.cncf.io/v1",
              "Stream": "apis/ktsn.io/v1alpha1"}
CLUSTERED = {"Node": "api/v1", "GateSchedule": "apis/ktsn.io/v1alpha1"}
PLURALS = {"NetworkPolicy": "networkpolicies", "NetworkAttachmentDefinition": "network-attachment-definitions"}
FOUND, GONE = range(200, 300), 404


class Connection(http.client.HTTPConnection):
    """HTTP to a socket in the file system."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def where(kind, name=None, namespace="default", **selectors):
    """The path of an object, or of all of its kind; namespace None: of every namespace."""
    parts = [CLUSTERED.get(kind) or NAMESPACED[kind]]
    if kind in NAMESPACED and namespace:
        parts += ["namespaces", namespace]
    parts += [PLURALS.get(kind, f"{kind.lower()}s"), *([name] if name else [])]
    asked = urllib.parse.urlencode({key: value for key, value in selectors.items() if value})
    return f"/{'/'.join(parts)}" + (f"?{asked}" if asked else "")


class Api:
    """One connection for each question, so that cases may ask side by side."""

    def __init__(self, path):
        self.path = path

    def call(self, method, path, body=None, kind="application/json"):
        """(status, answer)."""
        connection = Connection(self.path)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or "{}")
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            raise Failed(f"{method} {path}: {error}") from error
        finally:
            connection.close()

    def _done(self, method, path, *arguments):
        status, answer = self.call(method, path, *arguments)
        if status not in FOUND:
            raise Failed(f"{method} {path}: {status} {answer.get('message', answer)}")
        return answer

    def text(self, path):
        """An answer that is no object; empty: there is no answer."""
        connection = Connection(self.path)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read().decode() if answer.status in FOUND else ""
        except (OSError, http.client.HTTPException):
            return ""
        finally:
            connection.close()

    def get(self, kind, name, namespace="default", missing_ok=False):
        """An object; an empty one if there is none and that is well."""
        status, answer = self.call("GET", where(kind, name, namespace))
        if status == GONE and missing_ok:
            return {}
        if status not in FOUND:
            raise Failed(f"{kind} {name}: {status} {answer.get('message', answer)}")
        return answer

    def list(self, kind, namespace="default", labels="", fields=""):
        """All objects of a kind that have these labels and fields."""
        return self._done("GET", where(kind, None, namespace, labelSelector=labels, fieldSelector=fields))["items"]

    @contextlib.contextmanager
    def watch(self, kind):
        """What becomes of objects of a kind, one after the other, from now on."""
        def changes(answer):
            for line in answer:
                change = json.loads(line)
                if change["type"] == "ERROR":
                    raise Failed(f"watch of {kind}: {change['object']}")
                yield change["object"]
        version = self._done("GET", where(kind))["metadata"]["resourceVersion"]
        connection = Connection(self.path)
        try:
            connection.request("GET", where(kind, watch="true", resourceVersion=version))
            yield changes(connection.getresponse())
        finally:
            connection.close()

    def apply(self, *objects):
        """Creates or changes objects, given whole."""
        for thing in objects:
            path = where(thing["kind"], thing["metadata"]["name"], fieldManager="e2e-k8s", force="true")
            self._done("PATCH", path, thing, "application/apply-patch+yaml")

    def merge(self, kind, name, change, namespace="default"):
        """Changes what `change` has; None takes away."""
        self._done("PATCH", where(kind, name, namespace), change, "application/merge-patch+json")

    def label(self, kind, name, **labels):
        self.merge(kind, name, {"metadata": {"labels": labels}})

    def annotate(self, kind, name, annotations):
        self.merge(kind, name, {"metadata": {"annotations": annotations}})

    def delete(self, kind, *names, seconds=40):
        """Deletes objects, a Deployment with its pods, and waits until the API has forgotten them; one that is not there is well."""
        for name in names:
            status, answer = self.call("DELETE", where(kind, name), {"propagationPolicy": "Foreground"} if kind == "Deployment" else {})
            if status not in FOUND and status != GONE:
                raise Failed(f"DELETE {kind} {name}: {status} {answer.get('message', answer)}")
        left = list(names)

        def forgotten():
            left[:] = [name for name in left if self.get(kind, name, missing_ok=True)]
            return not left
        until(forgotten, seconds, lambda: f"{kind} {left} deleted")

# SPDX-License-Identifier: Apache-2.0
"""Certificates of the test cluster.

In: a directory, the API server's address, the nodes. Out: one CA, a key and a certificate for each component, kubeconfig
files. They are worth nothing outside of the cluster, whose network no one else reaches, and die with it.
"""

import subprocess

DAYS = "7"


class Authority:
    """One CA and what it has signed."""

    def __init__(self, directory, server, path):
        self.directory, self.server, self.environment = directory, server, {"PATH": path}
        directory.mkdir(parents=True)
        self._key("ca")
        self._openssl("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=ktsn-e2e", "-days", DAYS, "-out", "ca.crt",
                      "-addext", "basicConstraints=critical,CA:TRUE")

    def _openssl(self, *arguments):
        done = subprocess.run(["openssl", *arguments], cwd=self.directory, env=self.environment, capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr}")

    def _key(self, name):
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")

    def sign(self, name, subject, alternatives=()):
        """A key and a certificate for `subject`."""
        self._key(name)
        self._openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
        lines = ["keyUsage=digitalSignature,keyEncipherment", "extendedKeyUsage=serverAuth,clientAuth"]
        if alternatives:
            lines.append(f"subjectAltName={','.join(alternatives)}")
        (self.directory / f"{name}.ext").write_text("\n".join(lines) + "\n")
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                      "-days", DAYS, "-extfile", f"{name}.ext", "-out", f"{name}.crt")

    def client(self, name, subject, alternatives=()):
        """As `sign`, with a kubeconfig; its path."""
        self.sign(name, subject, alternatives)
        file = self.directory / f"{name}.conf"
        file.write_text(
            f"apiVersion: v1\nkind: Config\ncurrent-context: only\n"
            f"clusters: [{{name: only, cluster: {{server: 'https://{self.server}:6443', "
            f"certificate-authority: {self.directory}/ca.crt}}}}]\n"
            f"users: [{{name: only, user: {{client-certificate: {self.directory}/{name}.crt, "
            f"client-key: {self.directory}/{name}.key}}}}]\n"
            f"contexts: [{{name: only, context: {{cluster: only, user: only}}}}]\n")
        return file

    def signing_pair(self, name):
        """The key pair that service account tokens are signed with."""
        self._openssl("genrsa", "-out", f"{name}.key", "2048")
        self._openssl("rsa", "-in", f"{name}.key", "-pubout", "-out", f"{name}.pub")


def issue(directory, server, nodes, path):
    """Everything that the cluster needs; `nodes` maps names to addresses."""
    authority = Authority(directory, server, path)
    names = [f"IP:{server}", "IP:127.0.0.1", "IP:10.96.0.1", "DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default",
             "DNS:kubernetes.default.svc"]
    authority.sign("apiserver", "/CN=kube-apiserver", names)
    authority.sign("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet")
    authority.signing_pair("accounts")
    authority.client("admin", "/O=system:masters/CN=admin")
    authority.client("scheduler", "/CN=system:kube-scheduler")
    authority.client("controllers", "/CN=system:kube-controller-manager")
    # What a cluster made by kubeadm gives its node agents a service account for.
    authority.client("kube-proxy", "/CN=system:kube-proxy")
    authority.client("flannel", "/O=system:masters/CN=flannel")
    authority.client("multinet", "/O=system:masters/CN=multinet")
    for name, address in nodes.items():
        authority.client(name, f"/O=system:nodes/CN=system:node:{name}", [f"DNS:{name}", f"IP:{address}"])

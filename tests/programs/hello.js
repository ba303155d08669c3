// SPDX-License-Identifier: Apache-2.0
// Node: a TCP echo and a UDP echo on 127.0.0.1. Prints what came back.
const net = require("net");
const dgram = require("dgram");

const server = net.createServer((socket) => socket.pipe(socket));
server.listen(0, "127.0.0.1", () => {
  const client = net.connect(server.address().port, "127.0.0.1", () => client.end("hello by stream"));
  let text = "";
  client.on("data", (data) => (text += data));
  client.on("close", () => {
    console.log(text);
    server.close(datagrams);
  });
});

function datagrams() {
  const echo = dgram.createSocket("udp4");
  const asker = dgram.createSocket("udp4");
  echo.on("message", (data, from) => echo.send(data.toString().toUpperCase(), from.port, from.address));
  asker.on("message", (data) => {
    console.log(data.toString());
    asker.close();
    echo.close();
  });
  echo.bind(0, "127.0.0.1", () => asker.send("hello by datagram", echo.address().port, "127.0.0.1"));
}

// SPDX-License-Identifier: Apache-2.0
// Node, an ordinary listener: periodic.js PORT. Datagrams are numbered from 0 on (32 bits, network order); an empty one ends it.
const dgram = require("dgram");

const taken = [];
const socket = dgram.createSocket("udp4");
socket.on("message", (data) => {
  if (data.length > 0) {
    taken.push(data.readUInt32BE(0));
    return;
  }
  socket.close();
  if (taken.some((number, at) => number !== at)) console.log(`out of order: ${taken}`);
  console.log(`received ${taken.length}`);
});
socket.bind(Number(process.argv[2]));

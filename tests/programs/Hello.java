// SPDX-License-Identifier: Apache-2.0
// Java: a TCP echo and a UDP echo on 127.0.0.1. Prints what came back.
import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;

public class Hello {
    public static void main(String[] arguments) throws Exception {
        InetAddress local = InetAddress.getByName("127.0.0.1");
        try (ServerSocket server = new ServerSocket(0, 1, local); Socket client = new Socket(local, server.getLocalPort());
                Socket peer = server.accept()) {
            client.getOutputStream().write("hello by stream".getBytes());
            client.shutdownOutput();
            System.out.println(new String(peer.getInputStream().readAllBytes()));
        }
        try (DatagramSocket echo = new DatagramSocket(0, local); DatagramSocket asker = new DatagramSocket(0, local)) {
            byte[] text = "hello by datagram".getBytes();
            asker.send(new DatagramPacket(text, text.length, local, echo.getLocalPort()));
            DatagramPacket heard = new DatagramPacket(new byte[100], 100);
            echo.receive(heard);
            System.out.println(new String(heard.getData(), 0, heard.getLength()).toUpperCase());
        }
    }
}

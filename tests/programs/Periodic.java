// SPDX-License-Identifier: Apache-2.0
// Java, an ordinary listener: Periodic PORT. Datagrams are numbered from 0 on (32 bits, network order); an empty one ends it.
import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.nio.ByteBuffer;

public class Periodic {
    public static void main(String[] arguments) throws Exception {
        try (DatagramSocket socket = new DatagramSocket(Integer.parseInt(arguments[0]))) {
            DatagramPacket packet = new DatagramPacket(new byte[100], 100);
            for (int count = 0;; count++) {
                packet.setLength(100);
                socket.receive(packet);
                if (packet.getLength() == 0) {
                    System.out.println("received " + count);
                    return;
                }
                int number = ByteBuffer.wrap(packet.getData()).getInt();
                if (number != count) {
                    System.out.println("out of order: " + number + " instead of " + count);
                }
            }
        }
    }
}

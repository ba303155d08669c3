# SPDX-License-Identifier: Apache-2.0
# Started by systemd in ktsnd's own sandbox (ExecStartPost): which system calls the unit lets through. In: ktsnd's process number. Out:
# /run/probed, a line for each call: its name and `ok` or the error. x86-64's numbers, as syscalls(2) names them.
use strict;
use warnings;

my ($daemon) = @ARGV;
open(my $out, '>', '/run/probed.new') or die "/run/probed.new: $!";

# `zero`: what is no error.
sub answered {
    my ($name, $result) = @_;
    my $error = $!;
    print $out "$name: ", ($result >= 0 ? 'ok' : $error), "\n";
    return $result;
}

sub handle {
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!";
    return $file;
}

# The clock of a card: its number is made of the descriptor (clock_gettime(2), dynamic clocks).
my $card = handle('/dev/ptp0');
my $clock = ((~fileno($card)) << 3 | 3) & 0xffffffff;
my $time = "\0" x 16;
answered('clock_gettime of /dev/ptp0', syscall(228, $clock, $time));
my $timex = "\0" x 256;
answered('adjtimex', syscall(159, $timex));
my $map = pack('LLLL', 2, 4, 4, 1) . "\0" x 112;
answered('bpf', syscall(321, 0, $map, length $map));
my $other = syscall(434, $daemon + 0, 0);
answered('pidfd_getfd', $other < 0 ? $other : syscall(438, $other, 0, 0));
my $network = handle("/proc/1/ns/net");
answered('setns of a network', syscall(308, fileno($network), 0x40000000));
my $mounts = handle("/proc/1/ns/mnt");
answered('setns of mounts', syscall(308, fileno($mounts), 0x00020000));
answered('settimeofday', syscall(164, $time, 0));
my ($what, $where) = ('none', '/mnt');
answered('mount', syscall(165, $what, $where, $what, 0, 0));
answered('reboot', syscall(169, 0, 0, 0, 0));
close($out) or die "/run/probed.new: $!";
rename('/run/probed.new', '/run/probed') or die "/run/probed: $!";

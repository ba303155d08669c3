// SPDX-License-Identifier: Apache-2.0
//
// What Rust cannot say: a function with a variable number of arguments, a symbol that may be absent, and the memory
// functions that every compiler calls without being asked.
// In: fcntl and ioctl calls of the program. Out: the same call with its third argument made explicit.
// It must never call anything of a C library except dlsym, and that only when it is there.

#include <stdarg.h>
#include <stddef.h>

// In a program linked against an old glibc without libdl there is no dlsym; the library then uses raw system calls.
extern void *dlsym(void *handle, const char *name) __attribute__((weak, visibility("default")));

// RTLD_NEXT is (void *)-1 and RTLD_DEFAULT is (void *)0 in glibc and in musl.
void *ktsn_next_symbol(const char *name);
void *ktsn_any_symbol(const char *name);
int ktsn_fcntl_variadic(int fd, int command, ...);
int ktsn_fcntl64_variadic(int fd, int command, ...);
int ktsn_ioctl_variadic(int fd, unsigned long request, ...);

// Defined in Rust; hidden, so that they are not exported with the hooks.
__attribute__((visibility("hidden"))) extern int ktsn_fcntl(int fd, int command, long argument);
__attribute__((visibility("hidden"))) extern int ktsn_fcntl64(int fd, int command, long argument);
__attribute__((visibility("hidden"))) extern int ktsn_ioctl(int fd, unsigned long request, void *argument);

void *ktsn_next_symbol(const char *name)
{
	return dlsym ? dlsym((void *)-1L, name) : (void *)0;
}

void *ktsn_any_symbol(const char *name)
{
	return dlsym ? dlsym((void *)0, name) : (void *)0;
}

// fcntl's argument is an int, a long or a pointer, or missing: as a long it holds each of them, and a missing one
// is whatever the register held, as it is for the kernel.
int ktsn_fcntl_variadic(int fd, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	long argument = va_arg(arguments, long);
	va_end(arguments);
	return ktsn_fcntl(fd, command, argument);
}

int ktsn_fcntl64_variadic(int fd, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	long argument = va_arg(arguments, long);
	va_end(arguments);
	return ktsn_fcntl64(fd, command, argument);
}

// glibc's request is an unsigned long and musl's an int: the same register, handed on as it is.
int ktsn_ioctl_variadic(int fd, unsigned long request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	return ktsn_ioctl(fd, request, argument);
}

// Hidden: the program's own are not replaced. Small copies only; the payload is copied by the ring.
void *memcpy(void *restrict to, const void *restrict from, size_t octets);
void *memmove(void *to, const void *from, size_t octets);
void *memset(void *to, int value, size_t octets);
int memcmp(const void *left, const void *right, size_t octets);
size_t strlen(const char *text);

// Eight octets at any address.
typedef unsigned long word __attribute__((aligned(1), may_alias));

void *memcpy(void *restrict to, const void *restrict from, size_t octets)
{
	unsigned char *target = to;
	const unsigned char *source = from;
	for (; octets >= sizeof(word); octets -= sizeof(word), target += sizeof(word), source += sizeof(word))
		*(word *)target = *(const word *)source;
	while (octets--)
		*target++ = *source++;
	return to;
}

void *memmove(void *to, const void *from, size_t octets)
{
	unsigned char *target = to;
	const unsigned char *source = from;
	if (target <= source) {
		while (octets--)
			*target++ = *source++;
		return to;
	}
	while (octets--)
		target[octets] = source[octets];
	return to;
}

void *memset(void *to, int value, size_t octets)
{
	unsigned char *target = to;
	for (; octets >= sizeof(word); octets -= sizeof(word), target += sizeof(word))
		*(word *)target = (unsigned char)value * 0x0101010101010101ul;
	while (octets--)
		*target++ = (unsigned char)value;
	return to;
}

int memcmp(const void *left, const void *right, size_t octets)
{
	const unsigned char *one = left, *other = right;
	for (; octets--; one++, other++)
		if (*one != *other)
			return *one < *other ? -1 : 1;
	return 0;
}

size_t strlen(const char *text)
{
	size_t length = 0;
	while (text[length])
		length++;
	return length;
}

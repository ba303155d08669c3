// SPDX-License-Identifier: Apache-2.0
// Preloaded behind libktsn.so: memory, locks, output and threads, each call counted. The memory is never given back.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Alignas(64) char memory[32 << 20];
static size_t used;
static long calls;

long counted_calls(void)
{
	return __atomic_load_n(&calls, __ATOMIC_RELAXED);
}

static void count(void)
{
	__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
}

static void *take(size_t octets)
{
	count();
	// The size stands before the block.
	size_t at = __atomic_fetch_add(&used, (octets + 31) & ~(size_t)15, __ATOMIC_RELAXED);
	if (at + octets + 32 > sizeof(memory))
		return NULL;
	memcpy(memory + at, &octets, sizeof(octets));
	return memory + at + 16;
}

void *malloc(size_t octets)
{
	return take(octets);
}

void *calloc(size_t items, size_t octets)
{
	return take(items * octets);
}

void *realloc(void *old, size_t octets)
{
	char *new = take(octets);
	size_t before;
	if (old && new) {
		memcpy(&before, (char *)old - 16, sizeof(before));
		memcpy(new, old, before < octets ? before : octets);
	}
	return new;
}

void free(void *block)
{
	if (block)
		count();
}

#define COUNTED(type, name, parameters, ...) \
	type name parameters \
	{ \
		static type (*original) parameters; \
		if (!original) \
			original = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
		count(); \
		return original(__VA_ARGS__); \
	}

COUNTED(int, pthread_mutex_lock, (pthread_mutex_t * mutex), mutex)
COUNTED(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), mutex)
COUNTED(int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), lock)
COUNTED(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *mutex), condition, mutex)
COUNTED(ssize_t, write, (int fd, const void *data, size_t octets), fd, data, octets)
COUNTED(int, fputs, (const char *text, FILE *file), text, file)

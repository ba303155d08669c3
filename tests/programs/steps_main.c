// SPDX-License-Identifier: Apache-2.0
// Usage: steps STEP…       runs the steps in their order
//        steps peer PORT [GROUP]   prints what arrives (steps_peer.c)
// Control steps: sleep MS; pause (says so on standard error, waits for a line on standard input); user ID;
// fork … join; thread … join; exec (this program again, from the next step on); the rest is in the other files.
#include "steps.h"

#include <pthread.h>
#include <stdarg.h>
#include <sys/wait.h>

int fds[SOCKETS];
uint64_t asked[SOCKETS];
int number;

static char **steps;
static int step_count;
static char *program;

static const struct {
	int error;
	const char *name;
} names[] = {
	{EPERM, "EPERM"}, {EBADF, "EBADF"}, {EAGAIN, "EAGAIN"}, {EFAULT, "EFAULT"}, {EINVAL, "EINVAL"},
	{EDESTADDRREQ, "EDESTADDRREQ"}, {EMSGSIZE, "EMSGSIZE"}, {ENOPROTOOPT, "ENOPROTOOPT"}, {EACCES, "EACCES"},
	{EOPNOTSUPP, "EOPNOTSUPP"}, {EAFNOSUPPORT, "EAFNOSUPPORT"}, {EADDRINUSE, "EADDRINUSE"}, {ENOBUFS, "ENOBUFS"},
	{ENETUNREACH, "ENETUNREACH"}, {EHOSTUNREACH, "EHOSTUNREACH"}, {ECONNREFUSED, "ECONNREFUSED"}, {EIO, "EIO"},
	{ENOTCONN, "ENOTCONN"}, {EISCONN, "EISCONN"}, {ENOTSOCK, "ENOTSOCK"}, {ENOMSG, "ENOMSG"}, {EINTR, "EINTR"},
	{ECANCELED, "ECANCELED"}, {EPROTOTYPE, "EPROTOTYPE"}, {EADDRNOTAVAIL, "EADDRNOTAVAIL"}, {ENXIO, "ENXIO"},
	{ENODEV, "ENODEV"}, {EPIPE, "EPIPE"},
};

const char *error_name(int error)
{
	static char other[24];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].error == error)
			return names[i].name;
	snprintf(other, sizeof(other), "errno%d", error);
	return other;
}

const char *value(const struct step *step, const char *key, const char *fallback)
{
	size_t octets = strlen(key);

	for (int i = 1; i < step->count; i++)
		if (!strncmp(step->word[i], key, octets) && step->word[i][octets] == '=')
			return step->word[i] + octets + 1;
	return fallback;
}

long numeric(const struct step *step, const char *key, long fallback)
{
	const char *text = value(step, key, NULL);

	return text ? strtol(text, NULL, 0) : fallback;
}

void say(const struct step *step, const char *format, ...)
{
	va_list list;

	printf("%d %s: ", number, step->word[0]);
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
	fflush(stdout);
}

void say_result(const struct step *step, long result)
{
	if (result < 0)
		say(step, "%s", error_name(errno));
	else
		say(step, "%ld", result);
}

uint64_t now(int clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int slot(const struct step *step, int index)
{
	int which = step->count > index ? atoi(step->word[index]) : -1;

	if (which < 0 || which >= SOCKETS) {
		fprintf(stderr, "step %d: no such socket\n", number);
		exit(3);
	}
	return which;
}

static void split(const char *text, struct step *step)
{
	snprintf(step->text, sizeof(step->text), "%s", text);
	step->count = 0;
	for (char *word = strtok(step->text, " "); word && step->count < WORDS; word = strtok(NULL, " "))
		step->word[step->count++] = word;
	if (step->count == 0) {
		fprintf(stderr, "an empty step\n");
		exit(3);
	}
}

// The step after the next "join".
static int joined(int from)
{
	while (from < step_count && strcmp(steps[from], "join"))
		from++;
	return from + 1;
}

static void run(int from, int to);

static void *run_thread(void *from)
{
	int first = *(int *)from;

	run(first, joined(first) - 1);
	return NULL;
}

static void fork_step(int from)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		run(from, joined(from) - 1);
		// exit and not _exit: a program that ends does what the library does at its end.
		exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0) {
		printf("%d fork: the child ended with %d\n", number, status);
		exit(4);
	}
}

static void exec_step(int next)
{
	char list[256], from[16];
	char *arguments[WORDS * 4];
	int octets = 0, count = 0;

	for (int i = 0; i < SOCKETS; i++)
		octets += snprintf(list + octets, sizeof(list) - (size_t)octets, "%d ", fds[i]);
	snprintf(from, sizeof(from), "%d", next);
	setenv("STEPS_SOCKETS", list, 1);
	setenv("STEPS_FROM", from, 1);
	arguments[count++] = program;
	for (int i = 0; i < step_count && count < WORDS * 4 - 1; i++)
		arguments[count++] = steps[i];
	arguments[count] = NULL;
	fflush(stdout);
	execv(program, arguments);
	perror("execv");
	exit(4);
}

// Whether the step was one of control; where to go on.
static int control_step(const struct step *step, int *next)
{
	const char *verb = step->word[0];

	if (!strcmp(verb, "sleep")) {
		usleep((useconds_t)atoi(step->word[1]) * 1000);
	} else if (!strcmp(verb, "pause")) {
		char line[8];

		fputs("pause\n", stderr);
		if (!fgets(line, sizeof(line), stdin))
			exit(5);
	} else if (!strcmp(verb, "user")) {
		uid_t id = (uid_t)atoi(step->word[1]);

		say_result(step, setresgid(id, id, id) | setresuid(id, id, id));
	} else if (!strcmp(verb, "fork")) {
		fork_step(*next);
		*next = joined(*next);
	} else if (!strcmp(verb, "thread")) {
		pthread_t thread;
		int first = *next;

		if (pthread_create(&thread, NULL, run_thread, &first) || pthread_join(thread, NULL))
			exit(4);
		*next = joined(*next);
	} else if (!strcmp(verb, "exec")) {
		exec_step(*next);
	} else {
		return 0;
	}
	return 1;
}

// Counted from 1; a pause has no number, so that one may be put in anywhere.
static int step_number(int index)
{
	int count = 1;

	for (int i = 0; i < index; i++)
		count += strcmp(steps[i], "pause") != 0;
	return count;
}

static void run(int from, int to)
{
	int next = from;

	while (next < to) {
		struct step step;

		number = step_number(next);
		split(steps[next++], &step);
		if (!control_step(&step, &next) && !socket_step(&step)) {
			fprintf(stderr, "step %d: %s is no verb\n", number, step.word[0]);
			exit(3);
		}
	}
}

int main(int argc, char **argv)
{
	char *from = getenv("STEPS_FROM"), *list = getenv("STEPS_SOCKETS");

	if (argc >= 3 && !strcmp(argv[1], "peer")) {
		be_peer(argv[2], argc > 3 ? argv[3] : NULL);
		return 0;
	}
	program = argv[0];
	steps = argv + 1;
	step_count = argc - 1;
	for (int i = 0; i < SOCKETS; i++)
		fds[i] = list ? (int)strtol(list, &list, 10) : -1;
	unsetenv("STEPS_FROM");
	unsetenv("STEPS_SOCKETS");
	run(from ? atoi(from) : 0, step_count);
	return 0;
}

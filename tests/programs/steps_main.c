// SPDX-License-Identifier: Apache-2.0
// Usage: steps STEP…       runs the steps in their order
//        steps peer PORT [GROUP]   prints what arrives (steps_peer.c)
// Steps of control:
//   quiet                a step without a label prints nothing from here on, and the program ends if it fails
//   defaults KEY=VALUE…  keys of each later step that does not have them
//   base CLOCK:+NS       an instant that "tx=base:+NS" counts from
//   sleep MS; pause (says so on standard error, waits for a line on standard input); user ID
//   fork … join; thread … join; repeat N … join
//   exec                 this program again, from the next step on
#include "steps.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>

int fds[SOCKETS];
uint64_t asked[SOCKETS];
uint64_t base;
int number;

static char **steps;
static int step_count, next_step, is_quiet;
static struct step defaults;
const char *default_step = "defaults";

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

static const char *find(const struct step *step, const char *key)
{
	size_t octets = strlen(key);

	for (int i = 1; i < step->count; i++)
		if (!strncmp(step->word[i], key, octets) && step->word[i][octets] == '=')
			return step->word[i] + octets + 1;
	return NULL;
}

const char *value(const struct step *step, const char *key, const char *fallback)
{
	const char *found = find(step, key);

	if (!found)
		found = find(&defaults, key);
	return found ? found : fallback;
}

long numeric(const struct step *step, const char *key, long fallback)
{
	const char *text = value(step, key, NULL);

	return text ? strtol(text, NULL, 0) : fallback;
}

long word_number(const struct step *step, int index)
{
	return index < step->count ? strtol(step->word[index], NULL, 0) : 0;
}

uint64_t instant(const char *text)
{
	const char *colon = strchr(text, ':');
	int clock = !strncmp(text, "tai", 3) ? TAI : !strncmp(text, "mono", 4) ? CLOCK_MONOTONIC : CLOCK_REALTIME;

	if (colon[1] == '=')
		return strtoull(colon + 2, NULL, 0);
	return (strncmp(text, "base", 4) ? now(clock) : base) + (uint64_t)strtoll(colon + 1, NULL, 0);
}

void say(const struct step *step, const char *format, ...)
{
	va_list list;

	if (is_quiet && !step->label)
		return;
	if (step->label)
		printf("%s ", step->label);
	else
		printf("%d %s: ", number, step->word[0]);
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
	fflush(stdout);
}

void say_result(const struct step *step, long result)
{
	if (result >= 0) {
		say(step, "%ld", result);
	} else if (step->label) {
		say(step, "%d", -errno);
	} else if (is_quiet) {
		fprintf(stderr, "step %d, %s: %s\n", number, step->word[0], error_name(errno));
		exit(5);
	} else {
		say(step, "%s", error_name(errno));
	}
}

void say_clean(const struct step *step, long result)
{
	if (result < 0 || errno == 77) {
		say_result(step, result);
	} else if (is_quiet || step->label) {
		fprintf(stderr, "step %d, %s: errno became %s\n", number, step->word[0], error_name(errno));
		exit(5);
	} else {
		say(step, "%ld, but errno became %s", result, error_name(errno));
	}
}

void show(const char *what, long shown)
{
	printf("%s %ld\n", what, shown);
	fflush(stdout);
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
	step->label = NULL;
	step->count = 0;
	for (char *word = strtok(step->text, " "); word && step->count < WORDS; word = strtok(NULL, " ")) {
		size_t octets = strlen(word);

		if (step->count == 0 && !step->label && word[octets - 1] == ':') {
			word[octets - 1] = '\0';
			step->label = word;
		} else {
			step->word[step->count++] = word;
		}
	}
	if (step->count == 0) {
		fprintf(stderr, "an empty step\n");
		exit(3);
	}
}

// Counted from 1; a pause has no number, so that one may be put in anywhere.
static int step_number(int index)
{
	int count = 1;

	for (int i = 0; i < index; i++)
		count += strcmp(steps[i], "pause") != 0;
	return count;
}

static const struct verb *find_verb(const char *name)
{
	static const struct verb *const lists[] = {control_verbs, socket_verbs, send_verbs, receive_verbs, burst_verbs,
		cost_verbs, descriptor_verbs, number_verbs, garbage_verbs, hook_verbs, port_verbs, sandbox_verbs, stamp_verbs, thread_verbs,
		arrival_verbs, listener_verbs, period_verbs, traced_verbs};

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		for (const struct verb *verb = lists[i]; verb->name; verb++)
			if (!strcmp(verb->name, name))
				return verb;
	return NULL;
}

// Runs the steps up to `to`.
static void run(int from, int to)
{
	next_step = from;
	while (next_step < to) {
		struct step step;
		const struct verb *verb;

		number = step_number(next_step);
		split(steps[next_step++], &step);
		verb = find_verb(step.word[0]);
		if (!verb) {
			fprintf(stderr, "step %d: %s is no verb\n", number, step.word[0]);
			exit(3);
		}
		verb->run(&step);
	}
}

// The steps up to the "join" of the step that runs; the steps go on behind it.
struct block {
	int first, end;
};

static struct block take_block(void)
{
	struct block block = {next_step, next_step};

	for (int depth = 0; block.end < step_count; block.end++) {
		struct step step;

		split(steps[block.end], &step);
		if (!strcmp(step.word[0], "fork") || !strcmp(step.word[0], "thread") || !strcmp(step.word[0], "repeat"))
			depth++;
		else if (!strcmp(step.word[0], "join") && depth-- == 0)
			break;
	}
	return block;
}

static void quiet_step(const struct step *)
{
	is_quiet = 1;
}

static void defaults_step(const struct step *step)
{
	default_step = steps[next_step - 1];
	split(default_step, &defaults);
	set_destination(value(step, "to", "0"));
}

static void base_step(const struct step *step)
{
	base = instant(step->word[1]);
}

static void sleep_step(const struct step *step)
{
	usleep((useconds_t)word_number(step, 1) * 1000);
}

static void pause_step(const struct step *)
{
	char line[8];

	fputs("pause\n", stderr);
	if (!fgets(line, sizeof(line), stdin))
		exit(5);
}

static void user_step(const struct step *step)
{
	uid_t id = (uid_t)word_number(step, 1);

	say_result(step, setresgid(id, id, id) | setresuid(id, id, id));
}

static void fork_step(const struct step *step)
{
	struct block block = take_block();
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		run(block.first, block.end);
		// exit and not _exit: a program that ends does what the library does at its end.
		exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0) {
		printf("%d fork: the child ended with %d\n", number, status);
		exit(4);
	}
	if (step->label)
		show(step->label, status);
	next_step = block.end + 1;
}

static void *run_thread(void *block)
{
	run(((struct block *)block)->first, ((struct block *)block)->end);
	return NULL;
}

static void thread_step(const struct step *)
{
	struct block block = take_block();
	pthread_t thread;

	if (pthread_create(&thread, NULL, run_thread, &block) || pthread_join(thread, NULL))
		exit(4);
	next_step = block.end + 1;
}

static void repeat_step(const struct step *step)
{
	struct block block = take_block();

	for (long left = word_number(step, 1); left > 0; left--)
		run(block.first, block.end);
	next_step = block.end + 1;
}

static void execute(char **arguments)
{
	fflush(stdout);
	execv("/proc/self/exe", arguments);
	perror("execv");
	exit(4);
}

static void exec_step(const struct step *)
{
	char list[256], from[16];
	int octets = 0;

	for (int i = 0; i < SOCKETS; i++)
		octets += snprintf(list + octets, sizeof(list) - (size_t)octets, "%d ", fds[i]);
	snprintf(from, sizeof(from), "%d", next_step);
	setenv("STEPS_SOCKETS", list, 1);
	setenv("STEPS_FROM", from, 1);
	execute(steps - 1);
}

void become(const char *first, const char *second)
{
	char *arguments[] = {(char *)"steps", (char *)"quiet", (char *)default_step, (char *)first, (char *)second, NULL};

	execute(arguments);
}

const struct verb control_verbs[] = {
	{"quiet", quiet_step}, {"defaults", defaults_step}, {"base", base_step}, {"sleep", sleep_step}, {"pause", pause_step},
	{"user", user_step}, {"fork", fork_step}, {"thread", thread_step}, {"repeat", repeat_step}, {"exec", exec_step}, {0},
};

// Whatever hangs is killed.
static void limit_time(time_t seconds)
{
	struct sigevent end = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	struct itimerspec limit = {.it_value.tv_sec = seconds};
	timer_t timer;

	if (timer_create(CLOCK_MONOTONIC, &end, &timer) || timer_settime(timer, 0, &limit, NULL))
		exit(3);
}

int main(int argc, char **argv)
{
	char *from = getenv("STEPS_FROM"), *list = getenv("STEPS_SOCKETS"), *limit = getenv("STEPS_LIMIT");
	int first = from ? atoi(from) : 0;

	if (argc >= 3 && !strcmp(argv[1], "peer")) {
		be_peer(argv[2], argc > 3 ? argv[3] : NULL);
		return 0;
	}
	limit_time(limit ? atoi(limit) : 60);
	steps = argv + 1;
	step_count = argc - 1;
	for (int i = 0; i < SOCKETS; i++)
		fds[i] = list ? (int)strtol(list, &list, 10) : -1;
	unsetenv("STEPS_FROM");
	unsetenv("STEPS_SOCKETS");
	// After "exec": what the steps before it set.
	for (int i = 0; i < first; i++)
		if (!strcmp(steps[i], "quiet") || !strncmp(steps[i], "defaults ", 9))
			run(i, i + 1);
	run(first, step_count);
	return 0;
}

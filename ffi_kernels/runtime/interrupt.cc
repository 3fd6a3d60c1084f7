// Ctrl-C in the shell command: the process ends at once, from the signal handler itself, whatever Python's threads are waiting for.
#include <csignal>
#include <unistd.h>

namespace {

struct sigaction previous;

void leave(int) {
  const char cursor[] = "\x1b[?25h", message[] = "jaxqc: interrupted.\n";  // the live table hides the cursor
  ssize_t done = 0;
  if (isatty(STDOUT_FILENO)) done += write(STDOUT_FILENO, cursor, sizeof(cursor) - 1);
  if (isatty(STDERR_FILENO)) done += write(STDERR_FILENO, cursor, sizeof(cursor) - 1);
  done += write(STDERR_FILENO, message, sizeof(message) - 1);
  (void)done;
  _exit(130);
}

}  // namespace

// on: from now on SIGINT ends the process with status 130; off: as it was before.
extern "C" __attribute__((visibility("default"))) void jaxqc_leave_on_interrupt(int on) {
  if (on != 0) {
    struct sigaction action = {};
    action.sa_handler = leave;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &previous);
  } else {
    sigaction(SIGINT, &previous, nullptr);
  }
}

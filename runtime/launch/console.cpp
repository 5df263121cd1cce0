// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace tessera::runtime {

namespace {

constexpr std::size_t kBacklogBytes = std::size_t{1} << 20;
constexpr std::size_t kFileWriteBytes = std::size_t{1} << 16;
constexpr std::string_view kEraseLine = "\r\033[K";

bool is_regular_file(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

bool is_writable(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1;
}

} // namespace

Console::Console() {
  const int fds[] = {STDOUT_FILENO, STDERR_FILENO};
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].fd = fds[i];
    streams_[i].is_terminal = ::isatty(fds[i]) == 1;
    // A pipe with room accepts PIPE_BUF bytes; a file accepts anything.
    streams_[i].write_bytes =
        is_regular_file(fds[i]) ? kFileWriteBytes : PIPE_BUF;
  }
}

void Console::write(
    ConsoleStream stream,
    std::string_view lines,
    std::optional<std::string_view> progress) {
  Stream& target = at(stream);
  const bool redraw = target.is_terminal && (!progress_.empty() || progress);
  if (redraw && !progress_.empty()) {
    target.queue += kEraseLine;
  }
  target.queue += lines;
  if (progress) {
    progress_ = *progress;
  }
  if (redraw) {
    target.queue += progress_;
  }
}

void Console::flush(ConsoleStream stream) {
  Stream& target = at(stream);
  std::size_t done = 0;
  while (done < target.queue.size() && is_writable(target.fd)) {
    const auto count = ::write(
        target.fd,
        target.queue.data() + done,
        std::min(target.write_bytes, target.queue.size() - done));
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      target.reader_gone |= errno == EPIPE;
      done = target.queue.size();
    }
  }
  target.queue.erase(0, done);
}

int Console::fd_to_flush(ConsoleStream stream) const {
  return at(stream).queue.empty() ? -1 : at(stream).fd;
}

bool Console::is_backlogged() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    return stream.queue.size() > kBacklogBytes;
  });
}

bool Console::is_reader_gone() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    return stream.reader_gone;
  });
}

bool Console::is_terminal(ConsoleStream stream) const {
  return at(stream).is_terminal;
}

int Console::terminal_columns() const {
  winsize size{};
  constexpr int kDefaultColumns = 80;
  const bool known =
      ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kDefaultColumns;
}

Console::Stream& Console::at(ConsoleStream stream) {
  return streams_[static_cast<std::size_t>(stream)];
}

const Console::Stream& Console::at(ConsoleStream stream) const {
  return streams_[static_cast<std::size_t>(stream)];
}

} // namespace tessera::runtime

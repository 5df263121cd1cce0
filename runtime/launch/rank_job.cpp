// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/rank_job.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/launch/rank_environment.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

namespace tessera::runtime {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLinger{1000};
// See [Note: whose exit code]. Longer than the second for which a failing rank
// waits for collectives in progress.
constexpr milliseconds kCulpritPatience{3000};
constexpr std::array kStreams{ConsoleStream::kOut, ConsoleStream::kErr};
// Bounds the work per turn for a rank that prints continuously; more than a
// pipe holds, so that one turn reads everything that a dead rank has left.
constexpr int kReadsPerTurn = 32;

/// Whether a rank ended by itself, with the exit code for the signal that all
/// ranks got: not a failure because of which the others must end.
bool is_answer_to_signal(const ProcessEnd& end, int signal) {
  return signal != 0 && !end.by_signal &&
         end.exit_code() == ProcessEnd{true, signal}.exit_code();
}

UniqueFd& pipe_of(RankProcess& process, ConsoleStream stream) {
  return stream == ConsoleStream::kOut ? process.out() : process.err();
}

} // namespace

RankJob::Rank::Rank(
    int number,
    std::unique_ptr<RankProcess> started,
    std::string line_prefix,
    bool shows_progress)
    : number(number),
      prefix(std::move(line_prefix)),
      process(std::move(started)),
      prefixers{
          LinePrefixer(prefix, shows_progress),
          LinePrefixer(prefix, shows_progress)} {}

RankJob::RankJob(const LaunchOptions& options)
    : options_(options), port_(options.port) {}

int RankJob::run() {
  constexpr int kCannotExecute = 127;
  if (!start_ranks()) {
    flush_to_the_end();
    return kCannotExecute;
  }
  while (!is_over()) {
    wait_for_events();
    take_signals();
    take_blames();
    pass_on_all();
    take_ended_ranks();
    keep_deadlines();
    flush();
  }
  for (Rank& rank : ranks_) {
    // Processes that it left in its group end with it.
    rank.process->signal_group(SIGKILL);
    for (const ConsoleStream stream : kStreams) {
      pass_on(rank, stream);
      pipe_of(*rank.process, stream).reset();
      pass_on(rank, stream);
    }
  }
  for (const std::string& line : errors_.summary()) {
    say(line);
  }
  flush_to_the_end();
  const auto& end = first_failure_ ? first_failure_ : stopped_;
  return end ? end->exit_code() : 0;
}

bool RankJob::start_ranks() {
  const bool on_terminal = console_.is_terminal(ConsoleStream::kOut);
  ranks_.reserve(options_.nproc);
  for (int number = 0; number < options_.nproc; ++number) {
    const bool shows_progress = number == 0 && on_terminal;
    const int columns = shows_progress ? console_.terminal_columns() : 0;
    auto process = std::make_unique<RankProcess>(
        options_.command,
        rank_environment(
            {number, options_.nproc, port_.port(), columns, blames_.name()}),
        signals_.outer_mask());
    if (const int error = process->exec_error(); error != 0) {
      say("error: cannot start '" + options_.command.front() +
          "': " + std::strerror(error) +
          "; give the path of a program, or the name of one on PATH");
      return false;
    }
    const std::string prefix =
        options_.prefix ? "[rank " + std::to_string(number) + "] " : "";
    ranks_.emplace_back(number, std::move(process), prefix, shows_progress);
    ++running_;
  }
  return true;
}

bool RankJob::is_over() const {
  if (running_ > 0) {
    return false;
  }
  const bool all_read =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
        return !rank.process->out().is_open() && !rank.process->err().is_open();
      });
  return all_read || (linger_time_ && Clock::now() >= *linger_time_);
}

void RankJob::wait_for_events() {
  std::vector<pollfd> entries{
      {signals_.fd(), POLLIN, 0}, {blames_.fd(), POLLIN, 0}};
  for (const ConsoleStream stream : kStreams) {
    // poll skips negative descriptors.
    entries.push_back({console_.fd_to_flush(stream), POLLOUT, 0});
    for (const Rank& rank : ranks_) {
      if (!console_.is_backlogged()) {
        entries.push_back({pipe_of(*rank.process, stream).get(), POLLIN, 0});
      }
    }
  }
  int timeout_ms = -1;
  auto deadline = running_ > 0 ? kill_time_ : linger_time_;
  if (running_ > 0 && !deadline) {
    deadline = culprit_time_;
  }
  if (deadline && !(running_ > 0 && killed_)) {
    const auto left = std::chrono::ceil<milliseconds>(*deadline - Clock::now());
    timeout_ms = std::max(0, static_cast<int>(left.count()));
  }
  ::poll(entries.data(), entries.size(), timeout_ms);
}

void RankJob::take_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) {
      continue;
    }
    say("forwarding signal " + describe_signal(signal) + " to all ranks");
    for (const Rank& rank : ranks_) {
      rank.process->signal_group(signal);
    }
    last_stop_signal_ = signal;
    // The first signal lets ranks end in their own time, e.g. after a
    // checkpoint.
    if (++stop_signals_ > 1) {
      end_ranks();
    }
  }
}

void RankJob::take_blames() {
  while (const auto number = blames_.next()) {
    if (*number >= 0 && *number < static_cast<int>(ranks_.size())) {
      ranks_[static_cast<std::size_t>(*number)].blames_peer = true;
    }
  }
}

void RankJob::take_ended_ranks() {
  std::vector<Rank*> failed;
  for (Rank& rank : ranks_) {
    if (rank.ended || !rank.process->poll_end()) {
      continue;
    }
    rank.ended = true;
    --running_;
    const ProcessEnd& end = *rank.process->poll_end();
    if (is_answer_to_signal(end, last_stop_signal_)) {
      stopped_ = end;
    } else if (!end.is_success()) {
      failed.push_back(&rank);
    }
  }
  // Ranks send their messages before they end.
  take_blames();
  // Of ranks that fail at the same moment, one that blames no other is the
  // cause, and among these one that was killed.
  const auto order = [](const Rank* rank) {
    return std::pair(rank->blames_peer, !rank->process->poll_end()->by_signal);
  };
  const auto culprit = std::min_element(
      failed.begin(), failed.end(), [&](const Rank* a, const Rank* b) {
        return order(a) < order(b);
      });
  if (culprit != failed.end()) {
    take_failure(**culprit);
  }
  if (running_ == 0 && !linger_time_) {
    linger_time_ = Clock::now() + kLinger;
  }
}

void RankJob::take_failure(Rank& rank) {
  const bool is_effect = rank.blames_peer;
  if (first_failure_ && (is_effect || !culprit_time_)) {
    return;
  }
  first_failure_ = rank.process->poll_end();
  // Its last output comes before our message.
  for (const ConsoleStream stream : kStreams) {
    pass_on(rank, stream);
  }
  const bool waits = is_effect && running_ > 0 && !kill_time_;
  say("error: rank " + std::to_string(rank.number) + " (pid " +
      std::to_string(rank.process->pid()) + ") " + first_failure_->describe() +
      (is_effect ? " because of another rank" : "") +
      (running_ == 0 ? ""
       : waits       ? "; waiting for that rank"
                     : "; ending the other ranks"));
  if (waits) {
    culprit_time_ = Clock::now() + kCulpritPatience;
  } else {
    culprit_time_.reset();
    end_ranks();
  }
}

void RankJob::keep_deadlines() {
  if (console_.is_reader_gone() && !first_failure_) {
    first_failure_ = ProcessEnd{true, SIGPIPE};
    say("error: the output was closed; ending the ranks");
    end_ranks();
  }
  if (culprit_time_ && running_ > 0 && Clock::now() >= *culprit_time_) {
    culprit_time_.reset();
    say("error: no other rank has failed; ending the remaining ranks");
    end_ranks();
  }
  if (!kill_time_ || killed_ || running_ == 0 || Clock::now() < *kill_time_) {
    return;
  }
  killed_ = true;
  for (const Rank& rank : ranks_) {
    if (!rank.ended) {
      say("warning: rank " + std::to_string(rank.number) + " (pid " +
          std::to_string(rank.process->pid()) + ") did not end within " +
          std::to_string(options_.grace.count()) + " ms; killing it");
    }
    rank.process->signal_group(SIGKILL);
  }
}

void RankJob::end_ranks() {
  if (kill_time_) {
    return;
  }
  kill_time_ = Clock::now() + options_.grace;
  // Ranks that were signaled already may be ending; a second signal would cut
  // that short.
  if (stop_signals_ == 0) {
    for (const Rank& rank : ranks_) {
      rank.process->signal_group(SIGTERM);
    }
  }
}

void RankJob::pass_on(Rank& rank, ConsoleStream stream) {
  UniqueFd& pipe = pipe_of(*rank.process, stream);
  LinePrefixer& prefixer = rank.prefixers[static_cast<std::size_t>(stream)];
  const bool had_progress = !prefixer.progress().empty();
  std::string lines;
  std::array<char, 1 << 14> bytes;
  for (int i = 0; i < kReadsPerTurn && pipe.is_open(); ++i) {
    const auto count = ::read(pipe.get(), bytes.data(), bytes.size());
    if (count > 0) {
      lines += prefixer.feed({bytes.data(), static_cast<std::size_t>(count)});
    } else if (count == 0) {
      pipe.reset();
    } else if (errno != EINTR) {
      break;
    }
  }
  if (!pipe.is_open()) {
    lines += prefixer.finish();
  }
  // Without prefixes, the lines do not show which rank wrote them.
  if (stream == ConsoleStream::kErr && options_.prefix) {
    lines = errors_.without_repeated(rank.number, rank.prefix, lines);
  }
  const bool bar = rank.number == 0 && console_.is_terminal(stream);
  if (bar && (had_progress || !prefixer.progress().empty())) {
    console_.write(stream, lines, prefixer.progress());
  } else if (!lines.empty()) {
    console_.write(stream, lines);
  }
}

void RankJob::pass_on_all() {
  if (console_.is_backlogged()) {
    return;
  }
  for (Rank& rank : ranks_) {
    for (const ConsoleStream stream : kStreams) {
      pass_on(rank, stream);
    }
  }
}

void RankJob::say(std::string_view text) {
  console_.write(ConsoleStream::kErr, "tessera: " + std::string(text) + "\n");
}

void RankJob::flush() {
  for (const ConsoleStream stream : kStreams) {
    console_.flush(stream);
  }
}

void RankJob::flush_to_the_end() {
  while (true) {
    flush();
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
    for (const ConsoleStream stream : kStreams) {
      entries.push_back({console_.fd_to_flush(stream), POLLOUT, 0});
    }
    if (entries[1].fd < 0 && entries[2].fd < 0) {
      return;
    }
    ::poll(entries.data(), entries.size(), -1);
    while (const int signal = signals_.next()) {
      if (signal != SIGCHLD) {
        return;
      }
    }
  }
}

} // namespace tessera::runtime

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

RankJob::RankJob(const LaunchOptions& options) : options_(options) {
  if (options.nodes.rank > 0) {
    member_ = std::make_unique<NodeMember>(options);
    return;
  }
  reservation_.emplace(options.port);
  if (options.nodes.count > 1) {
    leader_ = std::make_unique<NodeLeader>(options);
  }
}

int RankJob::run() {
  while (true) {
    auto code = meet_nodes();
    if (!code) {
      run_ranks();
      code = conclude();
    }
    if (code) {
      flush_to_the_end();
      return *code;
    }
  }
}

std::optional<int> RankJob::meet_nodes() {
  const auto show = [&](std::string_view line) {
    log_text(line);
    flush();
  };
  if (member_) {
    const NodeMessage order =
        member_->next_order(signals_, show, stop_signals_);
    if (order.kind == NodeMessageKind::kExit) {
      if (!order.text.empty()) {
        log_text(order.text);
      }
      return order.exit_code;
    }
    attempt_ = order.attempt;
    port_ = order.port;
    options_.max_restarts = order.count;
    return std::nullopt;
  }
  if (attempt_ > 0 && options_.port == 0) {
    reservation_.reset();
    reservation_.emplace(0);
  }
  port_ = reservation_->port();
  if (!leader_) {
    return std::nullopt;
  }
  if (const auto signal = leader_->gather(signals_, show)) {
    const int code = ProcessEnd{true, *signal}.exit_code();
    const std::string line = "ended by signal " + describe_signal(*signal);
    leader_->finish(
        {.kind = NodeMessageKind::kExit, .text = line, .exit_code = code});
    log_text(line);
    return code;
  }
  leader_->start(attempt_, port_);
  return std::nullopt;
}

void RankJob::run_ranks() {
  start_ranks();
  while (!is_over()) {
    wait_for_events();
    take_signals();
    take_messages();
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
    log_text(line);
  }
  flush();
}

std::optional<int> RankJob::conclude() {
  const auto failure = std::exchange(first_failure_, std::nullopt);
  const int stopped_code = std::exchange(stopped_code_, 0);
  ranks_.clear();
  blames_.discard();
  errors_ = {};
  culprit_time_.reset();
  kill_time_.reset();
  killed_ = false;
  linger_time_.reset();

  if (member_) {
    if (const std::string loss = member_->loss(); !loss.empty()) {
      log_text(
          "error: the job has failed: " + loss +
          (failure && failure->text != loss ? "; on this node, " + failure->text
                                            : ""));
      return 1;
    }
    member_->send({.kind = NodeMessageKind::kDone, .exit_code = stopped_code});
    return std::nullopt;
  }
  if (failure && failure->may_restart && stop_signals_ == 0 &&
      attempt_ < options_.max_restarts) {
    ++attempt_;
    const std::string line = "starting all ranks again: restart " +
                             std::to_string(attempt_) + " of " +
                             std::to_string(options_.max_restarts);
    log_text(line);
    flush();
    if (leader_) {
      leader_->send_all({.kind = NodeMessageKind::kNotice, .text = line});
    }
    return std::nullopt;
  }
  const int code = failure ? failure->exit_code : stopped_code;
  if (leader_) {
    const std::string line =
        failure ? "error: the job has failed: " + failure->text : "";
    if (failure) {
      log_text(line);
      flush();
    }
    leader_->finish(
        {.kind = NodeMessageKind::kExit, .text = line, .exit_code = code});
  }
  return code;
}

int RankJob::first_rank() const {
  return options_.nodes.rank * options_.nproc;
}

std::string RankJob::describe(const Rank& rank) const {
  std::string text = "rank " + std::to_string(rank.number) + " (pid " +
                     std::to_string(rank.process->pid());
  if (options_.nodes.count > 1) {
    text +=
        " on node " + std::to_string(options_.nodes.rank) + ", " + this_host();
  }
  return text + ")";
}

std::string RankJob::early_ends() const {
  std::string text;
  for (const Rank& rank : ranks_) {
    if (rank.ended && rank.process->poll_end()->is_success()) {
      text += (text.empty() ? "; " : ", ") + describe(rank);
    }
  }
  return text.empty() ? text
                      : text +
                            " had ended early, with code 0: all ranks must "
                            "run the same number of steps";
}

void RankJob::start_ranks() {
  const bool on_terminal = console_.is_terminal(ConsoleStream::kOut);
  ranks_.reserve(options_.nproc);
  for (int local = 0; local < options_.nproc; ++local) {
    const int number = first_rank() + local;
    const bool shows_progress = number == 0 && on_terminal;
    RankVariables variables;
    variables.rank = number;
    variables.world_size = options_.nodes.count * options_.nproc;
    variables.local_rank = local;
    variables.local_world_size = options_.nproc;
    variables.node_rank = options_.nodes.rank;
    if (options_.nodes.count > 1) {
      variables.master_addr = options_.nodes.master_addr;
    }
    variables.port = port_;
    variables.restarts = attempt_;
    variables.max_restarts = options_.max_restarts;
    variables.terminal_columns =
        shows_progress ? console_.terminal_columns() : 0;
    variables.failure_socket = blames_.name();
    auto process = std::make_unique<RankProcess>(
        options_.command, rank_environment(variables), signals_.outer_mask());
    if (const int error = process->exec_error(); error != 0) {
      constexpr int kCannotExecute = 127;
      std::string text = "cannot start '" + options_.command.front() + "'";
      if (options_.nodes.count > 1) {
        text += " on node " + std::to_string(options_.nodes.rank) + " (" +
                this_host() + ")";
      }
      text += std::string(": ") + std::strerror(error) +
              "; give the path of a program, or the name of one on PATH";
      take_failure({text, kCannotExecute, false, /*may_restart=*/false});
      return;
    }
    const std::string prefix =
        options_.prefix ? "[rank " + std::to_string(number) + "] " : "";
    ranks_.emplace_back(number, std::move(process), prefix, shows_progress);
    ++running_;
  }
}

bool RankJob::is_over() const {
  if (is_any_node_running()) {
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
  int timeout_ms = leader_ || member_ ? kNodeTurnMs : -1;
  if (leader_) {
    leader_->add_poll_entries(entries);
  } else if (member_) {
    member_->add_poll_entries(entries);
  }
  auto deadline = running_ > 0 ? kill_time_ : linger_time_;
  if (running_ > 0 && !deadline) {
    deadline = culprit_time_;
  }
  if (deadline && !(running_ > 0 && killed_)) {
    const auto left = std::chrono::ceil<milliseconds>(*deadline - Clock::now());
    const int left_ms = std::max(0, static_cast<int>(left.count()));
    timeout_ms = timeout_ms < 0 ? left_ms : std::min(timeout_ms, left_ms);
  }
  ::poll(entries.data(), entries.size(), timeout_ms);
}

void RankJob::take_signals() {
  // Schedulers signal all launchers, and each tells the others.
  constexpr std::chrono::seconds kSameRequest{5};
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD ||
        (remote_stop_time_ &&
         Clock::now() - *remote_stop_time_ < kSameRequest)) {
      continue;
    }
    stop(signal, stop_signals_ + 1);
    forward_signal(signal, options_.nodes.rank);
  }
}

void RankJob::stop(int signal, int count) {
  log_text("forwarding signal " + describe_signal(signal) + " to all ranks");
  for (const Rank& rank : ranks_) {
    rank.process->signal_group(signal);
  }
  last_stop_signal_ = signal;
  // The first signal lets ranks end in their own time, e.g. after a
  // checkpoint.
  stop_signals_ = count;
  if (stop_signals_ > 1) {
    end_ranks();
  }
}

void RankJob::forward_signal(int signal, int sender) {
  const NodeMessage message{
      .kind = NodeMessageKind::kSignal,
      .signal = signal,
      .count = stop_signals_};
  if (leader_) {
    leader_->send_all(message, sender);
  } else if (member_) {
    member_->send(message);
  }
}

void RankJob::take_messages() {
  if (!leader_ && !member_) {
    return;
  }
  for (const NodeMessage& message :
       leader_ ? leader_->take_messages() : member_->take_messages()) {
    switch (message.kind) {
      case NodeMessageKind::kNotice:
        log_text(message.text);
        break;
      case NodeMessageKind::kEnd:
        log_text(message.text);
        end_ranks();
        break;
      case NodeMessageKind::kSignal:
        if (message.count > stop_signals_) {
          remote_stop_time_ = Clock::now();
          stop(message.signal, message.count);
          if (leader_) {
            forward_signal(message.signal, message.node_rank);
          }
        }
        break;
      case NodeMessageKind::kFailed:
        take_failure(
            {message.text,
             message.exit_code,
             message.blames_peer,
             message.may_restart});
        break;
      case NodeMessageKind::kDone:
        stopped_code_ = std::max(stopped_code_, message.exit_code);
        break;
      default:
        break;
    }
  }
  if (member_ && !kill_time_) {
    if (const std::string loss = member_->loss(); !loss.empty()) {
      first_failure_ = first_failure_.value_or(Failure{loss});
      end_job("error: " + loss + "; ending the ranks of this node");
    }
  }
}

bool RankJob::is_any_node_running() const {
  return running_ > 0 || (leader_ && leader_->is_running());
}

void RankJob::take_blames() {
  while (const auto number = blames_.next()) {
    const int local = *number - first_rank();
    if (local >= 0 && local < static_cast<int>(ranks_.size())) {
      ranks_[static_cast<std::size_t>(local)].blames_peer = true;
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
      stopped_code_ = end.exit_code();
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
    Rank& rank = **culprit;
    // Its last output comes before our message.
    for (const ConsoleStream stream : kStreams) {
      pass_on(rank, stream);
    }
    const ProcessEnd& end = *rank.process->poll_end();
    take_failure(
        {describe(rank) + " " + end.describe() +
             (rank.blames_peer ? " because of another rank" + early_ends()
                               : ""),
         end.exit_code(),
         rank.blames_peer});
  }
  if (running_ == 0 && !linger_time_) {
    linger_time_ = Clock::now() + kLinger;
  }
}

void RankJob::take_failure(const Failure& failure) {
  if (member_) {
    // Node 0 decides, and answers with what to do.
    member_->send(
        {.kind = NodeMessageKind::kFailed,
         .text = failure.text,
         .exit_code = failure.exit_code,
         .blames_peer = failure.blames_peer,
         .may_restart = failure.may_restart});
    if (!first_failure_ || first_failure_->blames_peer) {
      first_failure_ = failure;
    }
    return;
  }
  if (first_failure_ && (failure.blames_peer || !culprit_time_)) {
    return;
  }
  first_failure_ = failure;
  const bool others_run = is_any_node_running();
  const bool waits = failure.blames_peer && others_run && !kill_time_;
  const std::string line =
      "error: " + failure.text +
      (!others_run ? ""
       : waits     ? early_ends().empty() ? "; waiting for that rank"
                                          : "; waiting for another to fail"
                   : "; ending the other ranks");
  if (!waits) {
    culprit_time_.reset();
    end_job(line);
    return;
  }
  culprit_time_ = Clock::now() + kCulpritPatience;
  log_text(line);
  if (leader_) {
    leader_->send_all({.kind = NodeMessageKind::kNotice, .text = line});
  }
}

void RankJob::end_job(const std::string& line) {
  log_text(line);
  if (leader_) {
    leader_->send_all({.kind = NodeMessageKind::kEnd, .text = line});
  }
  end_ranks();
}

void RankJob::keep_deadlines() {
  if (console_.is_reader_gone() && !first_failure_) {
    const std::string node =
        options_.nodes.count > 1
            ? " of the launcher of node " + std::to_string(options_.nodes.rank)
            : "";
    const Failure failure{
        "the output" + node + " was closed",
        ProcessEnd{true, SIGPIPE}.exit_code(),
        /*blames_peer=*/false,
        /*may_restart=*/false};
    if (member_) {
      take_failure(failure);
    } else {
      first_failure_ = failure;
      end_job("error: " + failure.text + "; ending the ranks");
    }
  }
  if (culprit_time_ && is_any_node_running() &&
      Clock::now() >= *culprit_time_) {
    culprit_time_.reset();
    end_job("error: no other rank has failed; ending the remaining ranks");
  }
  if (!kill_time_ || killed_ || running_ == 0 || Clock::now() < *kill_time_) {
    return;
  }
  killed_ = true;
  for (const Rank& rank : ranks_) {
    if (!rank.ended) {
      log_text(
          "warning: rank " + std::to_string(rank.number) + " (pid " +
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

void RankJob::log_text(std::string_view text) {
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

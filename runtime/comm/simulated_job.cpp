// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/simulated_job.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/memory/dry_heap.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

namespace tessera::runtime {

namespace {

// What is larger consists of activations, which have no values.
constexpr size_t kMostPostedBytes = size_t{64} << 10;

class SimulatedWork : public c10d::Work {
 public:
  bool isCompleted() override {
    return true;
  }
  bool isSuccess() const override {
    return true;
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    return true;
  }
};

class SimulatedBackend : public c10d::Backend {
 public:
  SimulatedBackend(
      std::shared_ptr<SimulatedJob> job,
      std::string communicator,
      const std::string& key,
      int rank,
      const std::vector<int>& ranks)
      : c10d::Backend(
            static_cast<int>(
                std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()),
            static_cast<int>(ranks.size())),
        job_(std::move(job)),
        communicator_(std::move(communicator)),
        key_(key + "/" + std::to_string(ranks.front())),
        rank_in_job_(rank),
        ranks_(ranks) {}

  const std::string getBackendName() const override { // NOLINT: overrides
    return "simulated";
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& /*options*/) override {
    const c10::NoGradGuard no_grad;
    const Timer timer(*this);
    count("all_gather", output);
    const at::Tensor parts = output.view({getSize(), input.numel()});
    const at::Tensor local = input.view({1, input.numel()});
    // The input may be its part of the output.
    for (int rank = 0; rank < getSize(); ++rank) {
      if (rank != getRank() || !output.is_alias_of(input)) {
        parts.narrow(0, rank, 1).copy_(local);
      }
    }
    return done();
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& /*options*/) override {
    const c10::NoGradGuard no_grad;
    const Timer timer(*this);
    count("reduce_scatter", input);
    if (!output.is_alias_of(input)) {
      output.view({-1}).copy_(input.view({-1}).narrow(
          0, getRank() * output.numel(), output.numel()));
    }
    output.mul_(getSize());
    return done();
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& /*taken*/,
      std::vector<int64_t>& /*sent*/,
      const c10d::AllToAllOptions& /*options*/) override {
    const c10::NoGradGuard no_grad;
    const Timer timer(*this);
    count("all_to_all", input);
    if (output.numel() == input.numel()) {
      output.view({-1}).copy_(input.view({-1}));
    } else {
      output.zero_();
    }
    return done();
  }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    const c10::NoGradGuard no_grad;
    const Timer timer(*this);
    for (const at::Tensor& tensor : tensors) {
      count("all_reduce", tensor);
      if (options.reduceOp == c10d::ReduceOp::SUM) {
        tensor.mul_(getSize());
      }
    }
    return done();
  }

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    const c10::NoGradGuard no_grad;
    const Timer timer(*this);
    for (const at::Tensor& tensor : tensors) {
      count("broadcast", tensor);
      const int root = ranks_[static_cast<size_t>(options.rootRank)];
      if (root != rank_in_job_ && !partner_of(root)) {
        continue;
      }
      if (tensor.nbytes() <= kMostPostedBytes) {
        pass_on(tensor, root);
      } else if (root != rank_in_job_ && DryRun::current() == nullptr) {
        tensor.zero_();
      }
    }
    return done();
  }

  c10::intrusive_ptr<c10d::Work> barrier(
      const c10d::BarrierOptions& /*options*/) override {
    return done();
  }

  void abort() override {}

 private:
  /// Neighbors in a pipeline are in groups of two.
  std::optional<int> partner_of(int other) const {
    const auto partner = job_->partner(rank_in_job_, other);
    return partner == other || getSize() == 2 ? partner : std::nullopt;
  }

  /// The name of a message to or from another rank, which both ends know.
  std::string message_name(int other, bool sends) const {
    const int partner = *partner_of(other);
    // Partners that are no neighbors are in different groups.
    const std::string& group = partner == other ? key_ : communicator_;
    return group + "/" + std::to_string(sends ? rank_in_job_ : partner) + "/" +
           std::to_string(sends ? partner : rank_in_job_);
  }

  /// To and from the ranks of this process.
  void pass_on(const at::Tensor& tensor, int from) {
    if (from == rank_in_job_) {
      std::string message(tensor.nbytes(), '\0');
      if (has_dry_values(tensor.const_data_ptr())) {
        std::memcpy(message.data(), tensor.const_data_ptr(), tensor.nbytes());
      }
      for (const int rank : ranks_) {
        if (rank != from && partner_of(rank)) {
          job_->post(message_name(rank, /*sends=*/true), message);
        }
      }
    } else {
      const std::string message =
          job_->take(message_name(from, /*sends=*/false));
      TESSERA_CHECK(
          message.size() == tensor.nbytes(),
          "{}: a simulated rank sends {} bytes where {} are expected",
          communicator_,
          message.size(),
          tensor.nbytes());
      std::memcpy(tensor.mutable_data_ptr(), message.data(), message.size());
    }
  }

  /// Adds its lifetime to the time of this rank in collectives.
  class Timer {
   public:
    explicit Timer(const SimulatedBackend& backend) : backend_(backend) {}
    ~Timer() {
      const std::chrono::duration<double> passed = Clock::now() - begin_;
      backend_.job_->add_seconds(backend_.rank_in_job_, passed.count());
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    using Clock = std::chrono::steady_clock;

    const SimulatedBackend& backend_;
    const Clock::time_point begin_ = Clock::now();
    // Copies of the simulation are no work of the step.
    const DryKernel none_{"simulated collective"};
  };

  void count(const char* kind, const at::Tensor& full) {
    job_->add_work(
        rank_in_job_,
        communicator_,
        kind,
        ranks_,
        static_cast<double>(full.nbytes()));
  }

  static c10::intrusive_ptr<c10d::Work> done() {
    return c10::make_intrusive<SimulatedWork>();
  }

  std::shared_ptr<SimulatedJob> job_;
  std::string communicator_;
  std::string key_;
  int rank_in_job_;
  std::vector<int> ranks_;
};

} // namespace

SimulatedJob::SimulatedJob(
    std::vector<int> present,
    std::optional<c10::Device> device,
    std::chrono::seconds longest_wait,
    std::map<int, int> stand_ins)
    : present_(std::move(present)),
      stand_ins_(std::move(stand_ins)),
      device_(device),
      longest_wait_(longest_wait),
      store_(c10::make_intrusive<c10d::HashStore>()) {
  store_->setTimeout(longest_wait);
  std::sort(present_.begin(), present_.end());
}

std::optional<int> SimulatedJob::partner(int rank, int other) const {
  if (std::binary_search(present_.begin(), present_.end(), other)) {
    return other;
  }
  const auto found = stand_ins_.find(other);
  if (found == stand_ins_.end()) {
    return std::nullopt;
  }
  if (found->second != rank) {
    return found->second;
  }
  // It stands in for the neighbor: its messages are for the stage after it.
  const auto next = std::upper_bound(present_.begin(), present_.end(), other);
  return next == present_.end() ? std::nullopt : std::optional(*next);
}

void SimulatedJob::add_work(
    int rank,
    const std::string& communicator,
    const char* kind,
    const std::vector<int>& members,
    double bytes) {
  const std::lock_guard lock(mutex_);
  CollectiveWork& work = work_[{rank, communicator, kind, members}];
  work.communicator = communicator;
  work.kind = kind;
  work.ranks = static_cast<int>(members.size());
  work.members = members;
  ++work.calls;
  work.bytes += bytes;
}

std::vector<CollectiveWork> SimulatedJob::work(int rank) const {
  const std::lock_guard lock(mutex_);
  std::vector<CollectiveWork> all;
  for (const auto& [key, work] : work_) {
    if (std::get<0>(key) == rank) {
      all.push_back(work);
    }
  }
  return all;
}

void SimulatedJob::forget_work(int rank) {
  const std::lock_guard lock(mutex_);
  std::erase_if(
      work_, [&](const auto& each) { return std::get<0>(each.first) == rank; });
}

void SimulatedJob::add_seconds(int rank, double seconds) {
  const std::lock_guard lock(mutex_);
  seconds_[rank] += seconds;
}

double SimulatedJob::seconds(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = seconds_.find(rank);
  return found == seconds_.end() ? 0 : found->second;
}

void SimulatedJob::post(const std::string& name, std::string message) {
  {
    const std::lock_guard lock(mutex_);
    messages_[name].push_back(std::move(message));
  }
  changed_.notify_all();
}

std::string SimulatedJob::take(const std::string& name) {
  std::unique_lock lock(mutex_);
  std::deque<std::string>& waiting = messages_[name];
  changed_.wait_for(
      lock, longest_wait_, [&] { return !waiting.empty() || !end_.empty(); });
  TESSERA_CHECK(
      !waiting.empty(),
      "a simulated rank waits for a message that does not come: {}",
      end_.empty() ? name : end_);
  std::string message = std::move(waiting.front());
  waiting.pop_front();
  return message;
}

void SimulatedJob::end(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    end_ = reason;
  }
  changed_.notify_all();
}

c10::intrusive_ptr<c10d::Backend> make_simulated_backend(
    const std::shared_ptr<SimulatedJob>& job,
    const std::string& communicator,
    const std::string& key,
    int rank,
    const std::vector<int>& ranks) {
  return c10::make_intrusive<SimulatedBackend>(
      job, communicator, key, rank, ranks);
}

} // namespace tessera::runtime

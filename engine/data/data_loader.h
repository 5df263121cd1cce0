// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DataLoader` makes batches on threads of its own, before they are asked for.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/data/sample_order.h"

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

namespace runtime {

class OptionFields;

} // namespace runtime

struct DataLoaderOptions {
  /// Threads that make batches; 0: each is made when it is asked for, on the
  /// thread that asks.
  int threads = 1;
  /// Batches that are made ahead at most, and so kept in memory.
  int prefetch = 2;
};

void visit_fields(runtime::OptionFields& fields, DataLoaderOptions& options);

/// @throws tessera::Error on a value out of range.
void check(const DataLoaderOptions& options);

/// @throws tessera::Error if `state`, of a DataLoader, is of an order of other
///   samples or seed.
void check_same_samples(const CheckpointState& state, const SampleOrder& order);

/// `host` in pinned memory if `device` is an accelerator, else `host` itself.
/// What makes batches calls it, so that copies to the device do not block.
at::Tensor pinned(const at::Tensor& host, c10::Device device);

/// The batches of a rank, one after the other and epoch after epoch, without an
/// end. Which samples they have, and what they are, does not depend on the
/// threads. The object itself is used from one thread.
///
/// A Checkpointable: a checkpoint that contains it continues with the next
/// sample, also with another number of ranks or batch size. Loading throws if
/// the order was of other samples or seed.
template <typename Batch>
class DataLoader : public Checkpointable {
 public:
  /// Makes a batch, on any thread and several at once. Random numbers must be
  /// of generators of its own, seeded by sample and epoch, and tensors on the
  /// CPU: a copy to a device belongs to the stream of the thread that uses it.
  using Make = std::function<Batch(const SampleBatch&)>;

  /// @param order must outlive this object.
  DataLoader(
      const SampleOrder& order,
      Make make,
      const DataLoaderOptions& options = {})
      : order_(order),
        batches_(order.batches()),
        make_(std::move(make)),
        options_(options) {
    check(options);
    for (int i = 0; i < options_.threads; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  }

  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  /// Waits for batches that are being made.
  ~DataLoader() override {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
  }

  /// The next batch. Blocks until it has been made.
  /// @throws what its Make has thrown; the next call makes it again.
  Batch next() {
    if (options_.threads == 0) {
      Batch batch = make_(order_.batch(number_, batches_));
      ++number_;
      return batch;
    }
    std::unique_lock lock(mutex_);
    if (has_failed_) {
      restart(number_);
      changed_.notify_all();
    }
    changed_.wait(lock, [this] { return made_.count(number_) > 0; });
    Made made = std::move(made_.at(number_));
    has_failed_ = made.error != nullptr;
    if (has_failed_) {
      std::rethrow_exception(made.error);
    }
    made_.erase(number_);
    ++number_;
    lock.unlock();
    changed_.notify_all();
    return std::move(*made.batch);
  }

  /// The number of the batch that next() returns.
  int64_t number() const {
    return number_;
  }
  /// Goes to a batch; those that were made ahead are discarded.
  void seek(int64_t number) {
    {
      const std::lock_guard lock(mutex_);
      if (number == number_) {
        return;
      }
      restart(number);
    }
    changed_.notify_all();
  }

  SamplePosition position() const {
    return batches_.position_of(number_);
  }
  /// Goes to a sample, with which the next batch then begins, see
  /// EpochBatches::begin_at().
  void seek(const SamplePosition& position) {
    {
      const std::lock_guard lock(mutex_);
      restart(batches_.begin_at(position));
    }
    changed_.notify_all();
  }

  std::string name() const override {
    return "data_loader";
  }
  CheckpointState save_state() const override {
    const SamplePosition at = position();
    return {
        {{"epoch", at.epoch},
         {"samples", at.samples},
         {"samples_of_epoch", order_.samples()},
         {"seed", order_.seed()}},
        {}};
  }
  void load_state(const CheckpointState& state) override {
    check_same_samples(state, order_);
    seek(SamplePosition{
        state.values.at("epoch").template get<int64_t>(),
        state.values.at("samples").template get<int64_t>()});
  }

 private:
  struct Made {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  /// Under the mutex.
  void restart(int64_t number) {
    made_.clear();
    number_ = next_made_ = number;
    has_failed_ = false;
    ++restarts_;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] {
        return stops_ || next_made_ < number_ + options_.prefetch;
      });
      if (stops_) {
        return;
      }
      const int64_t number = next_made_++;
      const int64_t restarts = restarts_;
      const EpochBatches batches = batches_;
      lock.unlock();
      Made made;
      try {
        made.batch.emplace(make_(order_.batch(number, batches)));
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      if (restarts == restarts_) {
        made_.emplace(number, std::move(made));
        changed_.notify_all();
      }
    }
  }

  const SampleOrder& order_;
  EpochBatches batches_; ///< written by the user's thread, under the mutex
  Make make_;
  DataLoaderOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t number_ = 0; ///< written by the user's thread, under the mutex
  int64_t next_made_ = 0; ///< that a thread takes
  int64_t restarts_ = 0; ///< what was begun before one is discarded
  bool has_failed_ = false; ///< made_ has the error that next() has thrown
  bool stops_ = false;
  std::map<int64_t, Made> made_; ///< by number, at most `prefetch`
  std::vector<std::jthread> threads_; ///< the last member: they use the others
};

} // namespace tessera

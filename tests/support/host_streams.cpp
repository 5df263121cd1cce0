// SPDX-License-Identifier: Apache-2.0
#include "support/host_streams.h"

#include "tessera/runtime/core/error.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace tessera::tests {

namespace {

constexpr int kMostOpeners = 32;

/// After the bytes of an array: the processes that have it open.
struct Openers {
  std::atomic<int> processes[kMostOpeners];
};

[[noreturn]] void die(const char* why) {
  std::fprintf(stderr, "host_streams: %s\n", why);
  std::abort();
}

/// False for a process that has ended, reaped or not.
bool is_running(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

Openers& openers_of(std::byte* array, int64_t bytes) {
  return *reinterpret_cast<Openers*>(array + bytes);
}

} // namespace

/// The operations of one stream.
class HostStreams::Queue {
 public:
  explicit Queue(unsigned seed) : random_(seed), thread_([this] { work(); }) {}
  ~Queue() {
    stopping_ = true;
    changed_.notify_all();
    thread_.join();
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(std::function<void()> operation) {
    const std::lock_guard lock(mutex_);
    operations_.push_back(std::move(operation));
    changed_.notify_all();
  }
  bool synchronize(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(
        lock, deadline, [this] { return operations_.empty(); });
  }
  bool is_stopping() const {
    return stopping_;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (operations_.empty()) {
        changed_.wait_for(lock, std::chrono::milliseconds(10));
        continue;
      }
      const auto& operation = operations_.front();
      lock.unlock();
      if (random_() % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
      }
      operation();
      lock.lock();
      operations_.pop_front();
      changed_.notify_all();
    }
  }

  std::mt19937 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> operations_; ///< the first runs
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

HostStreams::HostStreams(unsigned seed) : seed_(seed) {
  new_stream();
}

HostStreams::~HostStreams() = default;

HostStreams::Stream HostStreams::new_stream() {
  const std::lock_guard lock(mutex_);
  queues_.push_back(std::make_unique<Queue>(
      seed_ * 100 + static_cast<unsigned>(queues_.size())));
  current_ = queues_.back().get();
  return current_;
}

void HostStreams::make_current(Stream stream) {
  const std::lock_guard lock(mutex_);
  current_ = static_cast<Queue*>(stream);
}

HostStreams::Stream HostStreams::current_stream() {
  const std::lock_guard lock(mutex_);
  return current_;
}

void HostStreams::run(std::function<void()> operation) {
  static_cast<Queue*>(current_stream())->push(std::move(operation));
}

bool HostStreams::synchronize(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (const auto& queue : queues_) {
    if (!queue->synchronize(deadline)) {
      return false;
    }
  }
  return true;
}

void HostStreams::copy(
    Stream stream,
    std::byte* to,
    const std::byte* from,
    int64_t bytes) {
  static_cast<Queue*>(stream)->push([=] {
    if (bytes > 0) {
      std::memmove(to, from, static_cast<size_t>(bytes));
    }
  });
}

void HostStreams::reduce(
    Stream stream,
    std::span<const std::byte* const> terms,
    std::byte* out,
    int64_t numel,
    c10::ScalarType dtype,
    runtime::ReduceKind kind) {
  static_cast<Queue*>(stream)->push(
      [=, kept = std::vector(terms.begin(), terms.end())] {
        runtime::reduce_terms(kept, out, numel, dtype, kind);
      });
}

void HostStreams::write_flag(
    Stream stream,
    runtime::ipc::StreamFlag& flag,
    uint32_t value) {
  check_registered(flag);
  static_cast<Queue*>(stream)->push([&flag, value] { flag = value; });
}

void HostStreams::wait_flag(
    Stream stream,
    const runtime::ipc::StreamFlag& flag,
    uint32_t value) {
  check_registered(flag);
  auto* queue = static_cast<Queue*>(stream);
  queue->push([&flag, value, queue] {
    while (!runtime::ipc::has_reached(flag, value) && !queue->is_stopping()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
}

std::byte* HostStreams::map(int file, int64_t bytes) {
  void* array = ::mmap(
      nullptr,
      static_cast<size_t>(bytes) + sizeof(Openers),
      PROT_READ | PROT_WRITE,
      MAP_SHARED,
      file,
      0);
  TESSERA_CHECK(array != MAP_FAILED, "cannot map {} bytes", bytes);
  const std::lock_guard lock(mutex_);
  arrays_[static_cast<std::byte*>(array)] = {file, bytes};
  return static_cast<std::byte*>(array);
}

std::byte* HostStreams::allocate(int64_t bytes) {
  const int file = ::memfd_create("array", MFD_CLOEXEC);
  TESSERA_CHECK(
      file >= 0 &&
          ::ftruncate(file, bytes + static_cast<int64_t>(sizeof(Openers))) == 0,
      "cannot allocate {} bytes",
      bytes);
  return map(file, bytes);
}

std::string HostStreams::export_array(std::byte* array) {
  const std::lock_guard lock(mutex_);
  const Array& own = arrays_.at(array);
  return std::to_string(::getpid()) + " " + std::to_string(own.file) + " " +
         std::to_string(own.bytes);
}

std::byte* HostStreams::open_array(const std::string& handle) {
  int process = 0;
  int file = 0;
  int64_t bytes = 0;
  std::istringstream(handle) >> process >> file >> bytes;
  const std::string path =
      "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  TESSERA_CHECK(own >= 0, "cannot open {}", path);
  std::byte* array = map(own, bytes);
  for (auto& place : openers_of(array, bytes).processes) {
    int none = 0;
    if (place.compare_exchange_strong(none, ::getpid())) {
      break;
    }
  }
  return array;
}

void HostStreams::close_array(std::byte* array) noexcept {
  const std::lock_guard lock(mutex_);
  const Array own = arrays_.at(array);
  for (auto& place : openers_of(array, own.bytes).processes) {
    int self_pid = ::getpid();
    place.compare_exchange_strong(self_pid, 0);
  }
  ::munmap(array, static_cast<size_t>(own.bytes) + sizeof(Openers));
  ::close(own.file);
  arrays_.erase(array);
}

void HostStreams::free(std::byte* array) noexcept {
  const std::lock_guard lock(mutex_);
  const Array own = arrays_.at(array);
  for (const auto& place : openers_of(array, own.bytes).processes) {
    if (place != 0 && is_running(place)) {
      die("an array is freed that another process has open");
    }
  }
  ::munmap(array, static_cast<size_t>(own.bytes) + sizeof(Openers));
  ::close(own.file);
  arrays_.erase(array);
}

void HostStreams::register_flags(void* begin, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  flags_[begin] = bytes;
}

void HostStreams::unregister_flags(void* begin) noexcept {
  const std::lock_guard lock(mutex_);
  flags_.erase(begin);
}

void HostStreams::check_registered(const runtime::ipc::StreamFlag& flag) {
  const auto* address = reinterpret_cast<const std::byte*>(&flag);
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, bytes] : flags_) {
    const auto* first = static_cast<const std::byte*>(begin);
    if (address >= first && address + sizeof(flag) <= first + bytes) {
      return;
    }
  }
  die("a flag is not registered");
}

} // namespace tessera::tests

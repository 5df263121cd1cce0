// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DryRun` executes a program without computing: while one is alive, operators
// of its thread have shapes only, and the memory of CPU tensors is counted and
// not taken. See [Note: dry memory].
//
// [Note: operators of a dry run] The dispatch key Fake, which LibTorch leaves
// to others, is below autograd: graphs, saved tensors and hooks are those of a
// real run, and so is the order in which tensors are freed. Its fallback sees
// every operator that autograd and composite operators call, and
//   - runs it where only small tensors with values take part, such as masks and
//     positions, so that programs can read those;
//   - lets an operator that is written in terms of others call them;
//   - asks a shape kernel of ours (dry_shapes.cpp) for the results and the
//     temporary memory of the CPU's kernel, or else
//   - LibTorch's Meta kernel for the results.
// What is read from tensors without values is zero; DryRun::assumptions() says
// where that happened.

#include "tessera/runtime/dry_run/work_counts.h"
#include "tessera/runtime/memory/dry_heap.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// See above. One thread has one at a time. What is used in it and existed
/// before, such as a batch, keeps its values.
class DryRun {
 public:
  /// @param target the device of the real run, kCPU or kCUDA: which operators
  ///   composite ones call, and what these keep for backward. Either way, the
  ///   program sees CPU tensors.
  explicit DryRun(c10::DeviceType target = c10::kCPU);
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  /// That of this thread; null outside of dry runs.
  static DryRun* current();

  c10::DeviceType target() const {
    return target_;
  }
  DryHeap& heap() {
    return *heap_;
  }

  /// Operators that use this tensor's storage count for `module`.
  void name_storage(const at::Tensor& tensor, std::string module);

  /// Drops what operators did.
  void forget_work();
  /// What they did since, in the order of first calls.
  std::vector<OperatorWork> work() const;
  /// The same of kernels that are no operators (DryKernel), with that name and
  /// without module.
  std::vector<OperatorWork> kernels() const;
  /// Calls of both, in their order.
  const std::vector<WorkCall>& calls() const {
    return calls_;
  }
  /// The module of the last parameter that was used, and the operator that runs
  /// or ran last.
  const std::string& module() const {
    return module_;
  }
  const std::string& running() const {
    return running_;
  }

  /// Where the program read values that do not exist.
  const std::set<std::string>& assumptions() const {
    return assumptions_;
  }
  void assume(std::string label);

  /// For the fallback.
  void begin_operator(const std::string& name, const void* storage);
  /// @param work of one call, without module and calls.
  void add_work(const OperatorWork& work);
  void add_kernel(const OperatorWork& work);
  /// What is called while `change` of it are under way is not counted.
  void count_as_one(int change);

 private:
  struct Mode;
  struct WorkRows {
    std::map<std::string, size_t> row_indices; ///< in `rows`
    std::vector<OperatorWork> rows;

    /// @return its row.
    size_t add(const std::string& key, const OperatorWork& work);
  };

  c10::DeviceType target_;
  std::shared_ptr<DryHeap> heap_;
  std::unique_ptr<Mode> mode_;
  std::map<const void*, std::string> modules_;
  std::string module_;
  std::string running_;
  std::set<std::string> assumptions_;
  WorkRows work_;
  WorkRows kernels_;
  std::vector<WorkCall> calls_;
  int counted_as_one_ = 0;
};

/// Counts a kernel that is no operator in the dry run of this thread, as one
/// call; operators that it calls while this lives are not counted. Nothing
/// outside of dry runs.
///
/// A kernel that writes memory of the host runs there. What it reads of the
/// device's is then copied to the host first, and what it writes of it back.
class DryKernel {
 public:
  /// @param name e.g. "tessera::pack".
  explicit DryKernel(const char* name);
  ~DryKernel();
  DryKernel(const DryKernel&) = delete;
  DryKernel& operator=(const DryKernel&) = delete;

  /// Elements of `tensor`, which may be undefined.
  void reads(const at::Tensor& tensor);
  void writes(const at::Tensor& tensor);

 private:
  /// @return whether it is in memory of the host.
  bool count(const at::Tensor& tensor);

  DryRun* run_; ///< null outside of dry runs
  OperatorWork work_;
  bool writes_host_ = false;
  double read_of_device_ = 0; ///< bytes
  double written_of_device_ = 0;
};

/// Whether what this thread does on `device` runs on a CPU; false in dry runs
/// for CUDA.
bool computes_on_cpu(c10::Device device);

/// While it lives, operators of this thread compute in a dry run too, and what
/// they make has values: for the few numbers that decide about shapes, which
/// code has to state where they are otherwise unknown (DryRun::assume()).
class DryValues {
 public:
  DryValues();
  ~DryValues();
  DryValues(const DryValues&) = delete;
  DryValues& operator=(const DryValues&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace tessera::runtime

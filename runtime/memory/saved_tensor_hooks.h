// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SavedTensorScope` passes every tensor that autograd saves to an
// ActivationSink, without changes to the model.
//
// [Note: saved tensors] LibTorch asks its autograd engine for hooks whenever an
// operator saves a tensor. The engine can be replaced: ours forwards everything
// to the previous engine and answers only this question itself. The replacement
// is process-wide, which is why it has a file of its own. Hooks of the previous
// engine (a user's own default hooks) take precedence. With hooks, LibTorch no
// longer checks that a saved tensor was not changed in place; ours do, with the
// same error.

#include "tessera/runtime/memory/activation_sink.h"

#include <memory>

namespace tessera::runtime {

/// While it exists, tensors that autograd saves on any thread go to `sink`, or
/// if it began in a dry run, those of that run; of several scopes, the most
/// recent one gets all. Without one, an operator pays a virtual call and a
/// load. Not to begin or end in forward or backward; graphs may outlive it.
/// Thread-safe.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(std::shared_ptr<ActivationSink> sink);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  std::shared_ptr<ActivationSink> sink_;
};

/// Whether a SavedTensorScope takes what this thread saves.
bool saved_tensors_have_sink();

/// While it exists, tensors that this thread saves go to the host, whatever the
/// policy of the sink (`false` restores the policy). No effect without a sink.
class SaveToHostScope {
 public:
  explicit SaveToHostScope(bool to_host);
  ~SaveToHostScope();
  SaveToHostScope(const SaveToHostScope&) = delete;
  SaveToHostScope& operator=(const SaveToHostScope&) = delete;

 private:
  bool before_;
};

} // namespace tessera::runtime

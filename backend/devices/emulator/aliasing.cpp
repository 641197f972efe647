// Shared blocks and the alias table (aliasing.h).
#include "devices/emulator/aliasing.h"

#include <cstring>

namespace npu::emulator {

namespace {

// The uses of a call's operands, which depend on its integers: those of the last call on this
// thread, whose integers most calls repeat.
const kernels::OperandUses& uses_of(const kernels::Declaration& kernel,
                                    std::span<const KernelArgument> arguments) {
  struct Last {
    const kernels::Declaration* kernel = nullptr;
    std::array<int64_t, kernels::kMaxOperands> integers;
    uint32_t buffers = 0;  // a bit per operand
    kernels::OperandUses uses;
  };
  thread_local Last last;
  uint32_t buffers = 0;
  bool same = last.kernel == &kernel;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].data != nullptr) {
      buffers |= 1u << i;
    } else {
      same &= last.integers[i] == arguments[i].value;
    }
  }
  if (same && buffers == last.buffers) return last.uses;
  for (size_t i = 0; i < arguments.size(); ++i) last.integers[i] = arguments[i].value;
  last.kernel = &kernel;
  last.buffers = buffers;
  last.uses = kernels::operand_uses(kernel, arguments);
  return last.uses;
}

}  // namespace

SharedBlock* BlockPool::take(size_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (free_.empty()) {
    all_.push_back(std::make_unique<SharedBlock>());
    all_.back()->pool = this;
    free_.push_back(all_.back().get());
  }
  SharedBlock* block = free_.back();
  free_.pop_back();
  if (block->data.size() < bytes) block->data.resize(bytes);
  block->packed.clear();
  return block;
}

void BlockPool::give_back(SharedBlock* block) {
  const std::lock_guard<std::mutex> guard(mutex_);
  free_.push_back(block);
}

void AliasTable::add(uint64_t address, uint64_t bytes, AliasSource source) {
  if (Alias* const old = starting_at(address); old != nullptr && old->bytes == bytes) {
    old->source = std::move(source);  // aliases do not overlap
    return;
  }
  std::erase_if(aliases_, [&](const Alias& old) {
    return old.address >= address && old.address + old.bytes <= address + bytes;
  });
  flush(address, bytes);
  aliases_.push_back({address, bytes, std::move(source)});
  aliased_pages_ |= pages(address, bytes);
  index();
}

void AliasTable::index() {
  for (size_t i = 0; i < std::min<size_t>(aliases_.size(), UINT8_MAX); ++i) {
    const uint64_t page = aliases_[i].address / kPageBytes;
    if (page < kPages) begins_[page] = static_cast<uint8_t>(i);
  }
}

AliasTable::Alias* AliasTable::starting_at(uint64_t address) {
  if (const uint64_t page = address / kPageBytes; page < kPages) {
    const uint8_t at = begins_[page];
    if (at < aliases_.size() && aliases_[at].address == address) return &aliases_[at];
  }
  for (Alias& alias : aliases_) {
    if (alias.address == address) return &alias;
  }
  return nullptr;
}

const AliasTable::Alias* AliasTable::find(uint64_t address, uint64_t bytes) {
  const Alias* const alias = starting_at(address);
  return alias != nullptr && alias->bytes >= bytes ? alias : nullptr;
}

template <typename Predicate>
bool AliasTable::flush_if(const Predicate& predicate) {
  const auto flushed = std::erase_if(aliases_, [&](const Alias& alias) {
    if (!predicate(alias)) return false;
    std::memcpy(memory_.data() + alias.address, alias.source.data(), alias.bytes);
    return true;
  });
  if (flushed > 0) index();
  return flushed > 0;
}

bool AliasTable::flush_overlapping(uint64_t address, uint64_t bytes) {
  return flush_if([&](const Alias& alias) { return alias.overlaps(address, bytes); });
}

void AliasTable::flush_arguments() {
  flush_if([](const Alias& alias) { return alias.source.argument != nullptr; });
}

void AliasTable::clear() {
  aliases_.clear();
  aliased_pages_ = 0;
  redirections_.clear();
  pinned_.clear();
}

// Whether a flush for one operand may have removed the alias of another.
bool AliasTable::find_redirections(std::span<const KernelArgument> arguments,
                                   const kernels::OperandUses& uses) {
  bool flushed = false;
  redirections_.clear();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].data == nullptr) continue;
    const kernels::OperandUse use = uses[i];
    const auto address = static_cast<uint64_t>(arguments[i].data - memory_.data());
    if ((pages(address, use.bytes) & aliased_pages_) == 0) continue;
    const Alias* alias = use.read_only ? find(address, use.bytes) : nullptr;
    if (alias == nullptr) {
      flushed |= flush(address, use.bytes);
    } else {
      redirections_.push_back({alias, i});
    }
  }
  return flushed;
}

void AliasTable::redirect(std::span<KernelArgument> arguments, const kernels::Declaration* kernel) {
  redirections_.clear();
  if (aliases_.empty()) return;
  if (kernel == nullptr || arguments.size() != static_cast<size_t>(kernel->count)) {
    return flush_all();
  }
  const kernels::OperandUses& uses = uses_of(*kernel, arguments);
  while (find_redirections(arguments, uses)) {
  }
  for (const Redirection& redirection : redirections_) {
    const Alias& alias = *redirection.alias;
    KernelArgument& argument = arguments[redirection.operand];
    argument.data = alias.source.data();
    argument.bytes = static_cast<uint32_t>(alias.bytes);
    if (alias.source.block) argument.packed = &alias.source.block->packed;
  }
}

void AliasTable::pin() {
  pinned_.clear();
  for (const Redirection& redirection : redirections_) {
    pinned_.push_back(redirection.alias->source.block);
  }
}

}  // namespace npu::emulator

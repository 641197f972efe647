// Shared blocks and the alias table (aliasing.h).
#include "devices/emulator/aliasing.h"

#include <cstring>

namespace npu::emulator {

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
  const auto same = [&](const Alias& old) { return old.address == address && old.bytes == bytes; };
  if (const auto at = std::find_if(aliases_.begin(), aliases_.end(), same); at != aliases_.end()) {
    at->source = std::move(source);  // aliases do not overlap
    return;
  }
  std::erase_if(aliases_, [&](const Alias& old) {
    return old.address >= address && old.address + old.bytes <= address + bytes;
  });
  flush(address, bytes);
  aliases_.push_back({address, bytes, std::move(source)});
  aliased_pages_ |= pages(address, bytes);
}

const AliasTable::Alias* AliasTable::find(uint64_t address, uint64_t bytes) const {
  for (const Alias& alias : aliases_) {
    if (alias.address == address && alias.bytes >= bytes) return &alias;
  }
  return nullptr;
}

template <typename Predicate>
bool AliasTable::flush_if(const Predicate& predicate) {
  const auto flushed = std::erase_if(aliases_, [&](const Alias& alias) {
    if (!predicate(alias)) return false;
    std::memcpy(memory_.data() + alias.address, alias.source.data(), alias.bytes);
    return true;
  });
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
  const kernels::OperandUses uses = kernels::operand_uses(*kernel, arguments);
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

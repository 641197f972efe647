"""The commands that install or change something, per distribution.

Package names: docs/hardware.md lists them with their state.
"""

from __future__ import annotations

from npu.hardware.doctor.parse import Distribution
from npu.hardware.doctor.result import Fix

UBUNTU_WITH_PACKAGES = (26, 4)  # the first release with XRT for the NPU in its archive
UBUNTU_WITH_PYXRT = (26, 10)
DEBIAN_WITH_PACKAGES = (13,)  # in its backports
FEDORA_WITH_PACKAGES = (46,)  # Rawhide in 2026-11
EPEL_WITH_PACKAGES = (10, 4)
_PPA = "sudo add-apt-repository ppa:amd-team/xrt"
_COPR = "sudo dnf copr enable abn/amd-npu"
SOURCE = "git clone --recursive https://github.com/amd/xdna-driver"
RELOAD = "sudo modprobe -r amdxdna && sudo modprobe amdxdna"
REBOOT = "sudo reboot"


def packaged(system: Distribution) -> bool:
    """Whether the distribution's own archive has XRT with the NPU plugin."""
    first = {
        "ubuntu": UBUNTU_WITH_PACKAGES, "debian": DEBIAN_WITH_PACKAGES,
        "fedora": FEDORA_WITH_PACKAGES, "rhel": EPEL_WITH_PACKAGES, "arch": (),
    }  # fmt: skip
    return system.family in first and system.version >= first[system.family]


def install_xrt(system: Distribution) -> tuple[str, ...]:
    """XRT and its NPU plugin."""
    if system.family == "ubuntu":
        if packaged(system):
            return ("sudo apt install libxrt2 libxrt-npu2",)
        return (_PPA, "sudo apt install libxrt2 libxrt-npu2 amdxdna-dkms")
    if system.family == "debian" and packaged(system):
        return ("sudo apt install -t trixie-backports libxrt-npu2",)
    if system.family == "fedora":
        return ("sudo dnf install xrt",) if packaged(system) else (_COPR, "sudo dnf install xrt")
    if system.family == "rhel" and packaged(system):
        return ("sudo dnf install epel-release", "sudo dnf install xrt")
    if system.family == "arch":
        return ("sudo pacman -S xrt xrt-plugin-amdxdna",)
    return (SOURCE, "less xdna-driver/README.md")


def install_xrt_tools(system: Distribution) -> tuple[str, ...]:
    """xrt-smi, where it is a package of its own."""
    if system.family in ("ubuntu", "debian"):
        return ("sudo apt install libxrt-utils libxrt-utils-npu",)
    return install_xrt(system)


def install_pyxrt(system: Distribution) -> tuple[str, ...]:
    """The Python bindings of XRT."""
    if system.family == "ubuntu" and not packaged(system):
        return (_PPA, "sudo apt install python3-xrt")
    if system.family == "ubuntu" and system.version >= UBUNTU_WITH_PYXRT:
        return ("sudo apt install python3-xrt",)
    if system.family in ("ubuntu", "debian"):
        return (SOURCE, "less xdna-driver/README.md")
    return install_xrt(system)


def _hwe_kernel(system: Distribution) -> tuple[str, ...]:
    """Ubuntu's newest kernel for a release with long support, which the module is built for."""
    if system.version not in ((22, 4), (24, 4)):
        return ()
    return (f"sudo apt install linux-generic-hwe-{system.version[0]}.04",)


def install_driver(system: Distribution) -> tuple[str, ...]:
    """A kernel with a current amdxdna, or the driver as an out-of-tree module."""
    if system.family == "ubuntu":
        if packaged(system):
            return ("sudo apt update && sudo apt full-upgrade", REBOOT)
        return (*_hwe_kernel(system), _PPA, "sudo apt install amdxdna-dkms", REBOOT)
    if system.family == "debian" and packaged(system):
        return ("sudo apt install -t trixie-backports linux-image-amd64", REBOOT)
    if system.family == "fedora":
        return ("sudo dnf upgrade --refresh", REBOOT)
    if system.family == "arch":
        return ("sudo pacman -Syu", REBOOT)
    return (SOURCE, "less xdna-driver/README.md")


def dkms_driver(system: Distribution) -> tuple[str, ...]:
    """A newer driver: as an out-of-tree module where there is a package of it."""
    if system.family == "fedora":
        return (_COPR, "sudo dnf install amdxdna-dkms", REBOOT)
    if system.family == "arch":
        return ("yay -S amdxdna-dkms   # from the AUR", REBOOT)
    return install_driver(system)


def install_firmware(system: Distribution) -> tuple[str, ...]:
    """The firmware files, current."""
    commands = {
        "ubuntu": "sudo apt update && sudo apt install linux-firmware",
        "debian": "sudo apt install -t trixie-backports firmware-linux-nonfree",
        "fedora": "sudo dnf upgrade --refresh linux-firmware",
        "rhel": "sudo dnf upgrade --refresh linux-firmware",
        "arch": "sudo pacman -Syu linux-firmware",
    }
    return (commands.get(system.family, "# install a current linux-firmware"), REBOOT)


def boot_words(system: Distribution, *, remove: str = "", add: str = "") -> tuple[str, ...]:
    """Removes words from the kernel's command line, or adds some."""
    if system.family in ("fedora", "rhel"):
        change = f'--remove-args="{remove}"' if remove else f'--args="{add}"'
        return (f"sudo grubby --update-kernel=ALL {change}", REBOOT)
    update = "sudo update-grub"
    if system.family not in ("ubuntu", "debian"):
        update = "sudo grub-mkconfig -o /boot/grub/grub.cfg   # or your boot loader's"
    change = f"remove {remove}" if remove else f"add {add}"
    return (f"sudoedit /etc/default/grub   # {change}", update, REBOOT)


def unlimited_memory_lock(system: Distribution) -> tuple[str, ...]:
    """For logins through PAM and, where sessions start in systemd, for those too."""
    line = "echo '@render - memlock unlimited' | \\\n  sudo tee /etc/security/limits.d/90-npu.conf"
    if system.family not in ("fedora", "rhel"):
        return (line,)
    folder = "/etc/systemd/system/user@.service.d"
    unit = f"printf '[Service]\\nLimitMEMLOCK=infinity\\n' | \\\n  sudo tee {folder}/90-npu.conf"
    return (line, f"sudo mkdir -p {folder}", unit)


EMULATED = "The emulated NPU works on any machine: every example and `npu generate` run on it."


def no_hardware(text: str, *commands: str) -> Fix:
    """Of a machine where nothing can be repaired."""
    return Fix(
        f"{text} {EMULATED}", commands or ("npu devices", 'npu generate -p "What is 2 + 3?"')
    )

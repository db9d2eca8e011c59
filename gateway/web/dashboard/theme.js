// Dark or light like the system, unless the user chose; before the first paint, so this is no module.
(() => {
  const root = document.documentElement;
  const chosen = localStorage.getItem("gateway-theme");
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme")?.addEventListener("click", () => {
      const isDark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = isDark ? "light" : "dark";
      localStorage.setItem("gateway-theme", root.dataset.theme);
    });
  });
})();

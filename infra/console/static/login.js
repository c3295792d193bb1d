// The link that the console prints holds the token behind "#": browsers send that part to nobody, and no log has it.
const form = document.getElementById("enter");
const token = decodeURIComponent(location.hash.slice(1));
history.replaceState(null, "", location.pathname + location.search);
if (form && token) {
  form.elements.token.value = token;
  form.submit();
} else if (form) {
  // A link from a chat or a ticket comes without the cookie, a call of our own with it: who is logged in goes on.
  fetch("/session", { cache: "no-store" }).then((answer) => {
    if (answer.status === 204 && !form.elements.token.value) location.replace(form.elements.next.value);
  });
}
